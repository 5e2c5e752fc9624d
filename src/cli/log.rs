//! The log on stderr and its form: lines for people, or one object per line for programs.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use super::os_error::in_words;
use super::paint::{Paint, complain, speak_json};

/// The field with the name of an event, of a closed vocabulary; lines for people omit it, since their text expresses it.
const EVENT: &str = "event";

/// The name of a field whose lines follow the message, indented, in the form for people.
const MORE: &str = "more";

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Time, level, text
    Text,
    /// An object per line: unix_ms, level, target, event, text
    Json,
}

/// The levels if neither `-v` nor `MESHTF_LOG` specifies them. A node logs its events; of libraries, and of commands that query
/// nodes, only failures are of interest. A failed run of this process is the error of the command.
fn levels(verbose: u8, is_node: bool) -> &'static str {
    match (verbose, is_node) {
        (0, true) => {
            "warn,meshtf::events=info,meshtf::node=info,meshtf::placement=info,libp2p=error,wgpu=error,\
             wgpu_hal=off,naga=error,cubecl=error"
        }
        (0, false) => {
            "warn,meshtf::placement=info,meshtf::runs=off,libp2p=error,libp2p_mdns=off,wgpu=error,wgpu_hal=off,\
             naga=error,cubecl=error"
        }
        (1, _) => {
            "info,meshtf::events=debug,meshtf::steps=debug,meshtf::transfers=debug,libp2p=warn,libp2p_mdns=error,\
             netlink=warn,wgpu=warn,wgpu_hal=error,naga=warn,cubecl=warn"
        }
        (2, _) => "info,meshtf=debug,naga=warn",
        _ => "trace",
    }
}

/// Logs to stderr at the levels of `MESHTF_LOG` or `-v`.
pub(super) fn to_stderr(verbose: u8, format: LogFormat, is_node: bool) {
    speak_json(format == LogFormat::Json);
    let levels = std::env::var("MESHTF_LOG").unwrap_or_else(|_| levels(verbose, is_node).to_owned());
    let filter: Targets = levels.parse().unwrap_or_else(|error| {
        complain(format_args!(
            "MESHTF_LOG={levels}: {error}; expected debug, or meshtf::mesh=trace, or several with commas"
        ));
        Targets::new().with_default(tracing::Level::WARN)
    });
    let filter = Seldom { levels: filter, told: Mutex::default() };
    // Otherwise the layer would report an error of stderr on stderr, and panic.
    let layer = layer().with_writer(std::io::stderr).log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    // A program that embeds this one and has a logger keeps it.
    let _ = match format {
        LogFormat::Json => registry.with(layer.event_format(Json).with_filter(filter)).try_init(),
        LogFormat::Text => {
            let layer =
                layer.with_ansi(Paint::stderr().is_on()).with_target(verbose > 0).fmt_fields(format::debug_fn(field));
            registry.with(layer.with_filter(filter)).try_init()
        }
    };
}

/// The target of mDNS's log, which repeats the failures of an interface at every query, some seconds apart.
const MDNS: &str = "libp2p_mdns";
/// Maximum number of its errors that are remembered as logged; further ones are not logged.
const MAX_TOLD: usize = 64;

/// Passes the events of the enabled levels, and each error of mDNS once.
struct Seldom {
    levels: Targets,
    told: Mutex<BTreeSet<String>>,
}

impl Seldom {
    /// Whether an event of that target and level with these fields is logged.
    fn lets(&self, target: &str, level: Level, fields: impl FnOnce() -> String) -> bool {
        let is_repeated = target.starts_with(MDNS) && level <= Level::WARN;
        if !is_repeated {
            return true;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < MAX_TOLD && told.insert(fields())
    }
}

impl<S: Subscriber> Filter<S> for Seldom {
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        Filter::enabled(&self.levels, metadata, context)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        Filter::<S>::callsite_enabled(&self.levels, metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Filter::<S>::max_level_hint(&self.levels)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.lets(event.metadata().target(), *event.metadata().level(), || {
            let mut fields = Fields(Map::new());
            event.record(&mut fields);
            Value::Object(fields.0).to_string()
        })
    }
}

fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    written(writer, field.name(), &format!("{value:?}"))
}

fn written(writer: &mut impl fmt::Write, name: &str, value: &str) -> fmt::Result {
    let value = &in_words(value);
    match name {
        EVENT => Ok(()),
        "message" => write!(writer, "{}", Escaped(value)),
        MORE => value.lines().try_for_each(|line| write!(writer, "\n    {}", Escaped(line.trim_start()))),
        name => write!(writer, " {name}={}", Escaped(value)),
    }
}

/// A text without its control characters: the text of a client or a peer neither controls the terminal nor begins a line of the
/// log.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c.is_control() {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

/// Writes events as objects, one per line: flat, with the time in `unix_ms`. The objects of tracing-subscriber's feature `json`
/// are nested.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields(Map::new());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        fields.0.insert("unix_ms".to_owned(), json!(now));
        fields.0.insert("level".to_owned(), json!(event.metadata().level().as_str().to_ascii_lowercase()));
        fields.0.insert("target".to_owned(), json!(event.metadata().target()));
        event.record(&mut fields);
        writeln!(writer, "{}", Value::Object(fields.0))
    }
}

/// The fields of one event.
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, mut value: Value) {
        if let Value::String(text) = &mut value {
            *text = in_words(text).into_owned();
        }
        let name = if field.name() == "message" { "text" } else { field.name() };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _never = write!(text, "{value:?}");
        self.add(field, text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (name, value, want) in [
            ("message", "no\u{1b}[2J\r\n2026 INFO all is well\u{9b}", "no\\u{1b}[2J\\r\\n2026 INFO all is well\\u{9b}"),
            ("message", "größer … 数", "größer … 数"),
            ("why", "a\nb", " why=a\\nb"),
            (MORE, "  first\n2026 INFO\u{7}", "\n    first\n    2026 INFO\\u{7}"),
            (EVENT, "run_failed", ""),
        ] {
            let mut text = String::new();
            written(&mut text, name, value).unwrap();
            assert_eq!(text, want, "{name} {value:?}");
        }
    }

    #[test]
    fn each_error_of_mdns_is_told_once() {
        let seldom = Seldom { levels: Targets::new(), told: Mutex::default() };
        let lets = |target: &str, level, text: &str| seldom.lets(target, level, || text.to_owned());
        let mdns = "libp2p_mdns::behaviour::iface";
        assert!(
            lets(mdns, Level::ERROR, "no route from 10.0.0.7") && lets(mdns, Level::ERROR, "no route from 10.1.0.7")
        );
        assert!(!lets(mdns, Level::ERROR, "no route from 10.0.0.7"));
        for (target, level) in [("meshtf::events", Level::ERROR), (mdns, Level::DEBUG)] {
            assert!(lets(target, level, "x") && lets(target, level, "x"), "{target} {level}");
        }
        assert_eq!((0..2 * MAX_TOLD).filter(|n| lets(mdns, Level::ERROR, &n.to_string())).count(), MAX_TOLD - 2);
    }

    #[test]
    fn all_levels_can_be_read_and_let_through_what_they_say() {
        let lets = |verbose: u8, is_node: bool, target: &str, level: Level| {
            levels(verbose, is_node).parse::<Targets>().unwrap().would_enable(target, &level)
        };
        assert!(lets(0, true, "meshtf::events", Level::INFO) && !lets(0, true, "meshtf::events", Level::DEBUG));
        assert!(!lets(0, false, "meshtf::events", Level::INFO) && lets(0, false, "meshtf::events", Level::WARN));
        assert!(lets(0, true, "meshtf::runs", Level::WARN) && !lets(0, false, "meshtf::runs", Level::WARN));
        assert!(lets(1, false, "meshtf::runs", Level::WARN));
        assert!(!lets(0, true, "meshtf::steps", Level::DEBUG) && lets(1, true, "meshtf::steps", Level::DEBUG));
        assert!(lets(1, false, "meshtf::transfers", Level::DEBUG) && !lets(1, true, "libp2p_swarm", Level::DEBUG));
        // The failures of mDNS concern a node only.
        assert!(lets(0, true, "libp2p_mdns::behaviour", Level::ERROR) && !lets(0, false, "libp2p_mdns", Level::ERROR));
        assert!(!lets(0, true, "libp2p_mdns::behaviour", Level::WARN));
        assert!(lets(2, true, "meshtf::mesh::driver", Level::DEBUG) && lets(2, true, "meshtf_exec", Level::DEBUG));
        assert!(!lets(2, true, "h2::codec", Level::DEBUG) && lets(3, true, "wgpu", Level::TRACE));
    }
}
