"""Reads the files of a model, for every engine: config.json, tensor headers, quantisation."""
