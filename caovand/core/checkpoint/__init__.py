"""Read a model's files for every engine: config.json, tensor headers, quantisation."""
