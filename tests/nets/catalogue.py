"""All nets by name."""

from __future__ import annotations

from tests.nets.json_keys import json_keys
from tests.nets.models import images, networks, node_suite
from tests.nets.public_names import signatures
from tests.nets.recorded import Net
from tests.nets.tuning import tuning

NETS = {
    net.name: net
    for net in (
        Net("networks", networks),
        Net("node_suite", node_suite),
        Net("images", images),
        Net("json_keys", json_keys),
        Net("tuning", tuning),
        Net("public_names", signatures),
    )
}
