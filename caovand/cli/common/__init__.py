"""What verbs share: the record of a verb, the daemon's client, printing, planning offline."""
