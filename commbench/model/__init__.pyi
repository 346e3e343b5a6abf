# The public names and where they are defined; `lazy_loader` imports each when it is first used.

from .derived import Comparison as Comparison
from .derived import Effect as Effect
from .derived import Finding as Finding
from .layers import AGAIN as AGAIN
from .layers import FETCHES as FETCHES
from .layers import LAYERS as LAYERS
from .plan import SCHEMA_VERSION as SCHEMA_VERSION
from .plan import USER_CODE as USER_CODE
from .plan import Case as Case
from .plan import ClusterSpec as ClusterSpec
from .plan import Launch as Launch
from .plan import Manifest as Manifest
from .plan import Placement as Placement
from .plan import Stopping as Stopping
from .plan import Suite as Suite
