"""Forecast the memory that SGLang will use."""
