"""`keyless.link` by one way of linking alone, so that each of them can be held to the same laws."""

from functools import partial
from unittest import mock

import keyless
from keyless import linker
from keyless.linking import Linking


def link_by(way, *tables, **options):
    """Link by `"pairs"` or `"columns"`; `"auto"` is what `keyless.link` does by itself."""
    with mock.patch.object(linker, "Linking", partial(Linking, way=way)):
        return keyless.link(*tables, **options)
