"""Rungs of the ladder that change SGLang's options, and advice on its failures."""
