"""The engine's user: programs, signals and function calls as `caovan-engine`, not as the daemon.

`engine_user` is the face: the daemon calls `begin` first of all, everyone else `current` and
`as_engine`. It starts `spawner`, the only process that keeps CAP_SETUID and CAP_SETGID, and
`capabilities` then drops the daemon's. `link` is the daemon's end of the spawner's socket.
A `Program` is what the spawner has started; the daemon watches and reaps it.
`helper` keeps one such program running, `calls`, which calls functions of caovan as the engine's
user, each in a process of its own: `as_engine(function, ...)` goes to `helper`, then `calls`.
`model_access` asks that way whether engines may read a model, and says which command lets them.

`spawner` and `calls` are executed as files; the spawner imports the standard library alone.
"""
