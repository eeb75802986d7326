"""Engine environments: an engine and its dependencies, installed from a lock file, proven and
switched atomically.

venv and pip install; uv, where it is present, unpacks several times as fast, and it installs a
Python that is missing. It cannot replace pip, which downloads as people configured it (see
`wheels`). This room does what neither does: it completes an interrupted installation, reports
beforehand what an offline folder or a disk lacks, proves an engine, and switches between engines.

This room uses only the standard library: it must run on a machine on which nothing else is
installed yet.
"""
