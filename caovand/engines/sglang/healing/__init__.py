"""Rungs of the ladder that change options of SGLang, and advice on its failures."""
