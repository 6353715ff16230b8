"""Who writes which side file."""

from __future__ import annotations

from tests.simulator.nccl_flight import flight_json, flight_parts, flight_pickle
from tests.simulator.nccl_inspector import inspector_parts, inspector_plain, inspector_verbose
from tests.simulator.nccl_plugin import plugin_new, plugin_old, plugin_parts
from tests.simulator.nccl_proxy import proxy_parts, proxy_text
from tests.simulator.nccl_side import Writer

WRITERS = {
    "plugin": Writer(plugin_parts, plugin_old, steady=True),
    "plugin-2.30": Writer(plugin_parts, plugin_new, steady=True),
    "proxy": Writer(proxy_parts, proxy_text, steady=True),
    "inspector": Writer(inspector_parts, inspector_plain, steady=False),
    "inspector-verbose": Writer(inspector_parts, inspector_verbose, steady=False),
    "flight-json": Writer(flight_parts, flight_json, steady=False),
    "flight-pickle": Writer(flight_parts, flight_pickle, steady=False),
}
