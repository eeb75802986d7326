"""The least that a proxy of aiohttp's server and client does, as a floor for the gateway's figures.

It knows one engine, and no keys, models, queue, limits, faults or counts.
"""

from __future__ import annotations

import asyncio

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

from caovand.adapters.servers import server_main

ENGINE_KEEPS_S = 5.0


async def serve(port: int, engine_port: int) -> None:
    """Be the proxy."""
    async with ClientSession(
        f"http://127.0.0.1:{engine_port}",
        connector=TCPConnector(limit=0, keepalive_timeout=ENGINE_KEEPS_S / 2),
        timeout=ClientTimeout(total=None),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
    ) as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            body, headers = await request.read(), {"Content-Type": request.content_type}
            async with session.post(request.path_qs, data=body, headers=headers) as got:
                response = web.StreamResponse(
                    status=got.status, headers={"Content-Type": got.content_type}
                )
                await response.prepare(request)
                while chunk := await got.content.readany():
                    await response.write(chunk)
                await response.write_eof()
                return response

        app = web.Application()
        app.add_routes([web.post("/{path:.*}", forward)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        server_main.settle_collector()
        await asyncio.Event().wait()
