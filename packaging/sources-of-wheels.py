"""sources-of-wheels.py FOLDER WHEEL...: the Python files and names of wheels, put into FOLDER."""

import sys
import zipfile

for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith((".py", ".dist-info/METADATA"))]
        archive.extractall(sys.argv[1], names)
