from __future__ import annotations

import sys

from penstock.entry import main

sys.exit(main())
