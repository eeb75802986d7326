"""Parts shared by verbs: the verb record, the daemon's client, printing, offline planning."""
