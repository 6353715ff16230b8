"""Who writes which side file."""

from __future__ import annotations

from graphlink.testing.nccl import Writer
from graphlink.testing.nccl_flight import flight_json, flight_parts, flight_pickle
from graphlink.testing.nccl_plugin import plugin_new, plugin_old, plugin_parts

WRITERS = {
    "plugin": Writer(plugin_parts, plugin_old, steady=True),
    "plugin-2.30": Writer(plugin_parts, plugin_new, steady=True),
    "flight-json": Writer(flight_parts, flight_json, steady=False),
    "flight-pickle": Writer(flight_parts, flight_pickle, steady=False),
}
