// Runs the trace processor of Perfetto's user interface, which is made for a worker of a browser.
// Requests come on standard input, replies leave on standard output, each a TraceProcessorRpcStream.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

// Its one file comes with it.
class XMLHttpRequest {
  open(method, name) {
    this.name = name;
  }

  send() {
    this.response = fs.readFileSync(path.join(folder, path.basename(this.name)));
  }
}

const browser = vm.createContext({
  TextDecoder,
  TextEncoder,
  WorkerGlobalScope: class {},
  XMLHttpRequest,
  console: { log: console.error, warn: console.error, error: console.error },
  crypto: globalThis.crypto,
  location: { href: "file:///", protocol: "file:" },
  performance,
  setTimeout,
});
browser.self = browser;
const engine = path.join(folder, "engine_bundle.js");
vm.runInContext(fs.readFileSync(engine, "utf8"), browser, engine);
const port = { postMessage: (reply) => fs.writeSync(1, reply) };
browser.onmessage({ data: port });

// It begins in a microtask, and takes arrays of its own context only.
const bytes = vm.runInContext("Uint8Array", browser);
setTimeout(() => port.onmessage({ data: bytes.from(fs.readFileSync(0)) }), 0);
