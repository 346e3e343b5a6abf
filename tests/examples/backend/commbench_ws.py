"""ws: Dask's messages in WebSockets, as clients behind a web proxy have them."""

import asyncio
from contextlib import asynccontextmanager

from commbench import BLOCKING_TCP, Backend, Endpoint, Endpoints, Transport


class WebSocketBackend(Backend):
    head = "ws"  # the entry point's name; takes_options = True allows options after a colon
    protocol = "ws"  # the scheme of Dask's addresses

    def unavailable(self, device):
        return None  # else Unavailability(reason, remedy); look for a library, don't import it

    def environment(self, device, scratch):
        return {}  # of every process of the cluster; dask_config() has Dask's own settings

    @staticmethod
    def transport(comm):  # runs in a worker: say what the connection is, not what was asked for
        kind = type(comm).__name__
        return Transport("websocket" if kind.startswith("WS") else "tcp", f"a {kind}")

    def settings(self, device):
        return "nothing: Dask's own ws://"

    def unavailable_layer(self, layer, mode):
        return None  # without this and the next, pingpong has Dask's layers, comm and worker

    def endpoints(self, layer):
        return BLOCKING_TCP if layer == "raw" else Endpoints(listen, connect)


class WSEndpoint(Endpoint):
    def __init__(self, write, read):
        self.write, self.read = write, read

    async def send(self, buffer):
        await self.write(buffer.tobytes(), binary=True)

    async def receive(self, buffer):
        buffer.data[:] = await self.read()

    async def close(self): ...


@asynccontextmanager
async def listen(handler, ip):
    from tornado import httpserver, netutil, web, websocket

    class Accepted(websocket.WebSocketHandler):
        def open(self):
            self.arrived = asyncio.Queue()
            endpoint = WSEndpoint(self.write_message, self.arrived.get)
            self.serving = asyncio.create_task(handler(endpoint))

        def on_message(self, message):
            self.arrived.put_nowait(message)

    (socket,) = netutil.bind_sockets(0, ip)
    application = web.Application([("/", Accepted)], websocket_max_message_size=1 << 30)
    server = httpserver.HTTPServer(application)
    server.add_sockets([socket])
    yield f"ws://{ip}:{socket.getsockname()[1]}/"
    server.stop()


async def connect(address):
    from tornado.websocket import websocket_connect

    connection = await websocket_connect(address, max_message_size=1 << 30)
    return WSEndpoint(connection.write_message, connection.read_message)
