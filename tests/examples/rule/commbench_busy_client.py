"""busy-client: the client's event loop is at work while task threads have no task."""

from commbench import Finding, Rule


def find(case):
    # Series with a share of the wall time for each iteration.
    busy = case.share("serialize_s", "deserialize_s", "messages_s", process="client")
    idle = case.share("idle_s")
    if busy.median() > 0.2:
        yield Finding(
            statement=f"the client is busy with messages {busy.median():.0%} of the time",
            evidence="profile: messages of the client",
            remedy="submit fewer and larger pieces of work",
            doubt="a client that gathers results is busy, too",
            # At most what the client does, and what the workers wait; at least nothing.
            effect=case.effect(busy.clip(upper=idle), 0 * busy),
        )


RULE = Rule(title="the client is busy", limit="20 % of the time", find=find)
