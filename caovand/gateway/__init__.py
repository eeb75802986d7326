"""The gateway: where clients reach the engine, whichever one serves; a separate process."""
