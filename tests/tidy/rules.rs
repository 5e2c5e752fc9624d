//! Which module may use which, and what each must not know.

/// A module of `src/`, and the modules of this crate that it may use.
pub struct Rule {
    pub module: &'static str,
    pub may_use: &'static [&'static str],
    /// Whether it is pure: no runtime, no network, no backend, no clock, no thread, no file system.
    pub pure: bool,
}

/// A module may use those that its rule names, and no others: data flows one way.
pub const RULES: &[Rule] = &[
    Rule { module: "failure", may_use: &[], pure: true },
    Rule { module: "ids", may_use: &[], pure: true },
    Rule { module: "lock", may_use: &[], pure: true },
    Rule { module: "nearest", may_use: &[], pure: true },
    Rule { module: "device", may_use: &[], pure: true },
    Rule { module: "json", may_use: &["failure"], pure: true },
    Rule { module: "memory", may_use: &["failure", "lock"], pure: true },
    Rule { module: "tensor", may_use: &["memory", "failure", "json"], pure: true },
    Rule { module: "graph", may_use: &["device", "tensor", "json", "failure", "nearest"], pure: true },
    Rule { module: "lowering", may_use: &["graph", "tensor", "failure"], pure: true },
    Rule { module: "data", may_use: &["tensor", "memory", "failure", "nearest"], pure: true },
    Rule { module: "train", may_use: &["data", "device", "graph", "tensor", "json", "failure", "nearest"], pure: true },
    Rule { module: "model", may_use: &["train", "graph", "tensor", "failure"], pure: true },
    Rule { module: "trace", may_use: &["device", "tensor", "failure"], pure: true },
    Rule { module: "plan", may_use: &["device", "graph", "tensor", "failure", "nearest", "ids"], pure: true },
    Rule {
        module: "protocol",
        may_use: &["plan", "trace", "device", "graph", "tensor", "failure", "ids", "nearest"],
        pure: true,
    },
    Rule { module: "checkpoint", may_use: &["tensor", "memory", "failure"], pure: false },
    Rule {
        module: "exec",
        may_use: &[
            "checkpoint",
            "plan",
            "trace",
            "device",
            "graph",
            "tensor",
            "memory",
            "failure",
            "ids",
            "nearest",
            "lock",
        ],
        pure: false,
    },
    Rule {
        module: "mesh",
        may_use: &[
            "protocol",
            "plan",
            "device",
            "tensor",
            "memory",
            "failure",
            "ids",
            "nearest",
            "lock",
            "random",
            "strangers",
            "descriptors",
        ],
        pure: false,
    },
    Rule { module: "random", may_use: &[], pure: false },
    Rule { module: "events", may_use: &["protocol", "lock"], pure: false },
    Rule { module: "descriptors", may_use: &[], pure: false },
    Rule { module: "strangers", may_use: &["descriptors", "lock"], pure: false },
    Rule {
        module: "runtime",
        may_use: &[
            "exec", "mesh", "events", "protocol", "plan", "trace", "device", "graph", "tensor", "memory", "failure",
            "ids", "nearest", "lock", "random",
        ],
        pure: false,
    },
    Rule {
        module: "session",
        may_use: &[
            "runtime", "protocol", "plan", "trace", "device", "graph", "tensor", "memory", "failure", "ids", "lock",
            "random",
        ],
        pure: false,
    },
    Rule {
        module: "door",
        may_use: &[
            "node",
            "session",
            "runtime",
            "protocol",
            "plan",
            "trace",
            "device",
            "lowering",
            "graph",
            "tensor",
            "memory",
            "failure",
            "ids",
            "lock",
            "random",
            "strangers",
            "descriptors",
        ],
        pure: false,
    },
    Rule {
        module: "trainer",
        may_use: &[
            "session",
            "checkpoint",
            "device",
            "graph",
            "data",
            "train",
            "trace",
            "tensor",
            "memory",
            "random",
            "failure",
        ],
        pure: false,
    },
    Rule { module: "allocator", may_use: &["memory"], pure: false },
    Rule {
        module: "node",
        may_use: &[
            "runtime",
            "events",
            "session",
            "exec",
            "mesh",
            "checkpoint",
            "protocol",
            "plan",
            "device",
            "graph",
            "tensor",
            "failure",
            "json",
            "lock",
        ],
        pure: false,
    },
    Rule {
        module: "local",
        may_use: &[
            "runtime",
            "events",
            "session",
            "exec",
            "checkpoint",
            "protocol",
            "plan",
            "device",
            "graph",
            "tensor",
            "failure",
            "ids",
            "random",
        ],
        pure: false,
    },
    Rule { module: "verify", may_use: &["session", "device", "graph", "tensor", "json", "failure"], pure: false },
    Rule { module: "fuzz", may_use: &["door", "exec", "mesh", "checkpoint", "device", "graph", "tensor"], pure: false },
    // The crate's own front: it names what others may use.
    Rule { module: "lib", may_use: &[], pure: false },
    Rule {
        module: "cli",
        may_use: &[
            "node",
            "local",
            "door",
            "trainer",
            "session",
            "verify",
            "exec",
            "mesh",
            "checkpoint",
            "protocol",
            "plan",
            "device",
            "graph",
            "data",
            "train",
            "trace",
            "tensor",
            "memory",
            "failure",
            "descriptors",
            "random",
        ],
        pure: false,
    },
    Rule { module: "main", may_use: &[], pure: false },
];

/// What a pure module must not name. Time and randomness come in as arguments.
pub const IMPURE: &[&str] = &[
    "tokio",
    "libp2p",
    "burn_backend",
    "burn_flex",
    "burn_ndarray",
    "burn_wgpu",
    "cubecl",
    "rustls",
    "socket2",
    "getrandom",
    "std::time",
    "std::thread",
    "std::net",
    "std::process",
    "std::env",
    "std::fs",
    "tracing",
];

/// Parts of modules that are pure though the rest of the module is not, and that hold no lock and no channel either.
pub const PURE_PARTS: &[&str] = &["src/runtime/master/machine.rs", "src/runtime/master/machine/"];

/// What a pure part must not name beyond [`IMPURE`].
pub const SHARED: &[&str] = &["Mutex", "RwLock", "Condvar", "Instant", "mpsc", "oneshot", "spawn", "lock"];

/// Outside crates, and parts of the standard library, that a module must not know though it is not pure.
pub const BORDERS: &[(&str, &[&str])] = &[
    ("exec", &["tokio", "libp2p", "rustls", "socket2", "clap"]),
    ("mesh", &["burn_backend", "burn_flex", "burn_ndarray", "burn_wgpu", "cubecl", "clap"]),
    ("runtime", &["libp2p", "burn_backend", "burn_wgpu", "cubecl", "clap", "std::fs"]),
    ("session", &["libp2p", "burn_backend", "burn_wgpu", "cubecl", "clap", "std::fs"]),
    ("door", &["libp2p", "burn_backend", "burn_wgpu", "cubecl", "clap"]),
    ("events", &["std::fs"]),
    ("node", &["std::fs"]),
    ("local", &["std::fs"]),
];

/// Public enums that have all the cases that there can be, so that a match on one needs no `_`.
pub const COMPLETE: &[&str] = &["Admission", "EngineOutcome", "LinkState", "Unconnected"];

/// Names that several types of one module have because each is read with the name of its own file.
pub const MAY_SHARE: &[(&str, &str)] = &[
    ("cli", "Args"),   // the arguments of each subcommand
    ("exec", "Site"),  // where an engine's kernel runs, and for whom a stateful op does
    ("graph", "Call"), // what a rule is called with: that of a gradient, and that of a shape
    ("graph", "Rule"),
];

/// Names that several public types of the crate have because each is read with the name of its module.
pub const PUBLIC_MAY_SHARE: &[&str] = &[
    "Node",  // of a graph, and of the mesh
    "Rows",  // of examples, and of a gradient
    "Value", // of a model as it is written, and of an engine
];

/// What the file of a module itself defines, as against the files below it. That file brings the parts together, and may use all.
pub const SELF: &str = "self";

/// Modules whose parts stand in an order: a part may use only those of the layers before its own. Parts in one string
/// know each other.
pub const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "tensor",
        &[
            &[SELF, "dtype"],
            &["convert", "element", "shape"],
            &["moved"],
            &["literal", "npy", "render", "wire"],
            &["safetensors"],
        ],
    ),
    ("data", &[&[SELF, "idx", "images", "order", "there"], &["csv", "text"], &["file"], &["npz"]]),
    ("trace", &[&[SELF], &["timeline"], &["chrome", "picture"]]),
    ("model", &[&[SELF], &["attention", "math", "recurrent"], &["layers"]]),
    (
        "lowering",
        &[
            &[SELF],
            &["values", "boolean"],
            &["compose"],
            &["activation", "base", "float", "int", "module", "random", "signal"],
            &["numeric"],
        ],
    ),
    ("protocol", &[&[SELF, "constants"], &["cluster", "look, status", "flow"], &["event"], &["inquiry"]]),
    (
        "checkpoint",
        &[
            &[SELF, "crc32c", "folder"],
            &["slice", "table", "files"],
            &["bundle"],
            &["write"],
            &["v1", "read"],
            &["fuzz", "merge"],
        ],
    ),
    ("session", &[&[SELF, "constants"], &["alone", "inquire", "partial"]]),
    ("verify", &[&["case"], &["compare"], &["replay"]]),
    ("door", &[&[SELF], &["burn", "tensorflow", "web"]]),
    (
        "door::burn",
        &[
            &[SELF, "slots", "message", "messagepack", "form", "process", "websocket", "socket"],
            &["known"],
            &["frame"],
            &["program, relative, step"],
            &["graph"],
            &["plans"],
            &["fuzz", "run"],
            &["session, http"],
        ],
    ),
    ("door::web", &[&[SELF, "metrics", "picture", "recent"], &["looks"], &["http"]]),
    (
        "exec",
        &[
            &["turn", "denormals", "busy"],
            &["lots"],
            &["vector", "files"],
            &["kernel"],
            &["engine, burn"],
            &["host", "rows", "sums", "waiting", "sink"],
            &["adapters", "resource, token, dataset", "parked", "outbox"],
            &["held"],
            &["variant"],
            &["state"],
            &["program"],
            &["step"],
            &["function", "mailbox"],
            &["inner"],
            &["thread"],
            &["device"],
            &["fuzz"],
        ],
    ),
    (
        "door::tensorflow",
        &[
            &["message", "unproven", "pieces", "readers", "recent", "connection"],
            &["budget", "trace", "wire"],
            &["rope", "tensor"],
            &["feed", "session"],
            &["sessions"],
            &["service"],
            &["grpc", "fuzz"],
        ],
    ),
    (
        "mesh",
        &[
            &[SELF, "release", "handshakes", "bulk_queue", "clock", "order", "sent", "traffic", "incoming", "health"],
            &["error"],
            &["denied", "address", "frame"],
            &["key", "discovery", "wire"],
            &["transport", "callers", "registry", "ticket"],
            &["admission", "remembered"],
            &["cause", "single", "fuzz"],
            &["port"],
            &["roster, link, transfer"],
            &["control"],
            &["links"],
            &["driver"],
        ],
    ),
    (
        "plan",
        &[
            &[SELF, "error"],
            &["prune", "group", "picture", "summary"],
            &["frame", "place", "waits"],
            &["simplify"],
            &["partition"],
        ],
    ),
    (
        "graph",
        &[
            &[SELF, "error"],
            &["function", "shape"],
            &["op, attr"],
            &["refused"],
            &["build"],
            &["builder"],
            &["gradient", "variable"],
            &["program, json, graphdef"],
        ],
    ),
    (
        "train",
        &[
            &[SELF, "optimizer", "schedule", "clip", "average"],
            &["dense", "ring"],
            &["minimize", "sparse"],
            &["file"],
            &["job"],
            &["numerics"],
        ],
    ),
    (
        "trainer",
        &[
            &[SELF],
            &["observer, evaluated"],
            &["stored", "tracing", "constants"],
            &["checkpoint"],
            &["state", "steps"],
            &["evaluation"],
            &["feed", "fits", "lookup", "held", "numerics", "weights"],
            &["source, rows, folder"],
        ],
    ),
    (
        "cli",
        &[
            &[SELF, "paint"],
            &["failure", "log", "memory", "table", "diagnosis"],
            &["output", "reach", "signals", "config", "inputs", "init", "join", "man", "trace"],
            &[
                "node",
                "completions",
                "differentiate",
                "doctor",
                "events",
                "export",
                "plan",
                "ps",
                "submit",
                "status",
                "tf",
                "ticket",
                "top",
                "train",
                "verify",
            ],
            &["burn", "run", "server", "variable"],
        ],
    ),
    ("runtime", &[&["router"], &["client", "worker", "master"], &["inspect"], &["host"]]),
    ("node", &[&[SELF, "router", "spec"]]),
];
