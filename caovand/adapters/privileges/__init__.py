"""The engine's user: programs, signals and function calls as `caovan-engine`, not as the daemon.

`engine_user` is the interface: the daemon calls `begin` first of all, everyone else `current` and
`as_engine`. It starts `spawner`, the only process that keeps CAP_SETUID and CAP_SETGID;
`capabilities` then drops the daemon's. `link` is the daemon's end of the spawner's socket. A
`ProgramOfUser` is a program that the spawner has started; the daemon watches and reaps it. `helper`
keeps one such program running, `calls`, which calls functions of caovan as the engine's user, each
in its own process: `as_engine(function, ...)` goes to `helper`, then to `calls`. `model_access`
uses that to check whether engines may read a model, and names the command that grants access.

`spawner` and `calls` are executed as files; the spawner imports only the standard library.
"""
