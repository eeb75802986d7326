"""Several machines that serve one model: what their daemons tell each other, and what follows."""
