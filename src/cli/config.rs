//! The configuration file of `meshtf node`: every flag by its name, for flags that the command line and the environment leave
//! open. `meshtf doctor` reads it too, and takes the flags that it has itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use meshtf::doctor::SERVICE_HOME;
use meshtf::mesh::home;
use meshtf_tensor::nearest::nearest;
use toml::de::DeTable;
use toml::{Spanned, Table, Value};

use super::node::TASK;
use super::{Cli, Trouble};

/// The subcommand of the file.
const NODE: &str = "node";
/// The configuration file of this machine's service, as the packages install it.
const SERVICE_CONFIG: &str = "/etc/meshtf/config.toml";
/// The subcommand that checks it.
const DOCTOR: &str = "doctor";
/// Its flags that the file cannot contain: they are about the file, or end the command.
const NOT_IN_FILE: [&str; 4] = ["config", "print-config", "help", "version"];
/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// The result of the search of `meshtf doctor` for the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Found {
    /// No file is named, and the user has no home folder for one.
    #[default]
    Nowhere,
    /// No file exists at its usual path.
    Absent(PathBuf),
    /// It was read, and sets these flags.
    Read { path: PathBuf, flags: Vec<String> },
    /// It cannot be read, or contains an entry that a node would refuse.
    Wrong(String),
}

/// The file that was read.
#[derive(Debug)]
struct File {
    path: PathBuf,
    table: Table,
    /// The line of each key, from 1.
    lines: BTreeMap<String, usize>,
}

impl File {
    /// `config.toml line 3: …`
    fn message(&self, mistake: &Mistake) -> String {
        let line = mistake.key.as_ref().and_then(|key| self.lines.get(key));
        let line = line.map(|line| format!(" line {line}")).unwrap_or_default();
        format!("{}{line}: {}", self.path.display(), mistake.why.trim_end())
    }
}

/// A mistake in the file.
struct Mistake {
    /// The key at fault, if it is one.
    key: Option<String>,
    why: String,
}

impl Mistake {
    fn of(key: &str, why: String) -> Mistake {
        Mistake { key: Some(key.to_owned()), why }
    }
}

impl From<clap::Error> for Mistake {
    /// The reason, without the lines on usage and help: the mistake is in the file.
    fn from(error: clap::Error) -> Mistake {
        let text = error.to_string();
        let ends = ["\n\nUsage:", "\n\nFor more information"].into_iter().filter_map(|end| text.find(end)).min();
        let text = &text[..ends.unwrap_or(text.len())];
        let why = text.strip_prefix("error: ").unwrap_or(text).trim_end().to_owned();
        let flag = match error.get(ContextKind::InvalidArg) {
            // `--listen <ADDR>`
            Some(ContextValue::String(flag)) => flag.split(' ').next().and_then(|flag| flag.strip_prefix("--")),
            _ => None,
        };
        Mistake { key: flag.map(str::to_owned), why }
    }
}

/// The reason why the command line could not be parsed.
pub(super) enum Wrong {
    /// An error of clap.
    Usage(clap::Error),
    /// The file is at fault.
    File(Trouble),
}

impl From<clap::Error> for Wrong {
    fn from(error: clap::Error) -> Self {
        Wrong::Usage(error)
    }
}

/// Parses a command line; that of `meshtf node` is completed from the file, and returned as a file, too, for `--print-config`.
pub(super) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<(Cli, Option<String>), Wrong> {
    let mut line: Vec<OsString> = line.into_iter().collect();
    let is_node = line.iter().any(|word| word == NODE);
    let loose = is_node.then(|| loose().try_get_matches_from(&line).ok()).flatten();
    let Some(given) = loose.as_ref().and_then(|matches| matches.subcommand_matches(NODE)) else {
        let matches = Cli::command().try_get_matches_from(&line)?;
        let cli = match matches.subcommand_matches(DOCTOR) {
            Some(given) => doctors(line, given)?,
            None => Cli::from_arg_matches(&matches)?,
        };
        return Ok((cli, None));
    };
    let file = file(given, &places(None)).map_err(Wrong::File)?;
    if let Some(file) = &file {
        let at = |mistake: Mistake| Wrong::File(Trouble::input(file.message(&mistake)));
        let added = added(&flags_of(NODE), given, &file.table).map_err(at)?;
        // An error of the command line without the file is reported as such.
        loose_with(&line, &added).map_err(|error| at(error.into()))?;
        line.extend(added.into_iter().map(OsString::from));
    }
    let matches = Cli::command().try_get_matches_from(&line)?;
    let printed = matches.subcommand_matches(NODE).map(|matches| printed(&flags_of(NODE), matches));
    Ok((Cli::from_arg_matches(&matches)?, printed))
}

/// The command line of `meshtf doctor`, completed from the file, and the result of the search for it: a file that is wrong is a
/// finding.
fn doctors(mut line: Vec<OsString>, given: &ArgMatches) -> Result<Cli, clap::Error> {
    let places = places(Some(Path::new(SERVICE_CONFIG)));
    let found = match file(given, &places) {
        Err(trouble) => Found::Wrong(trouble.to_string()),
        Ok(None) => places.into_iter().next().map_or(Found::Nowhere, Found::Absent),
        Ok(Some(file)) => match for_doctor(given, &file.table) {
            Err(mistake) => Found::Wrong(file.message(&mistake)),
            Ok(added) => {
                line.extend(added.into_iter().map(OsString::from));
                Found::Read { flags: file.table.keys().cloned().collect(), path: file.path }
            }
        },
    };
    let mut cli = Cli::from_arg_matches(&Cli::command().try_get_matches_from(&line)?)?;
    if let super::Command::Doctor(args) = &mut cli.command {
        args.found = found;
    }
    Ok(cli)
}

/// The words that the file adds for `meshtf doctor`: the flags that a node has, too.
fn for_doctor(given: &ArgMatches, table: &Table) -> Result<Vec<String>, Mistake> {
    let (node, doctor) = (flags_of(NODE), flags_of(DOCTOR));
    let bare = ["meshtf", NODE].map(OsString::from);
    let as_node = loose().try_get_matches_from(&bare)?;
    if let Some(given) = as_node.subcommand_matches(NODE) {
        let whole = added(&node, given, table)?;
        loose_with(&bare, &whole)?;
    }
    let own: BTreeSet<&str> = of_file(&doctor).filter(|(arg, _)| !arg.is_global_set()).map(|(_, long)| long).collect();
    let table = table.iter().filter(|(key, _)| own.contains(key.as_str()));
    added(&doctor, given, &table.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The command line without the requirements of `node`: the file may meet them.
fn loose() -> Command {
    Cli::command().mut_subcommand(NODE, |node| {
        node.mut_args(|arg| arg.required(false)).mut_group(TASK, |task| task.required(false))
    })
}

fn loose_with(line: &[OsString], added: &[String]) -> Result<ArgMatches, clap::Error> {
    loose().try_get_matches_from(line.iter().cloned().chain(added.iter().map(OsString::from)))
}

/// A subcommand, with the flags that all have.
fn flags_of(name: &str) -> Command {
    let mut all = Cli::command();
    all.build();
    all.find_subcommand(name).cloned().unwrap_or_default()
}

/// The paths of the file if none is named: the first that exists counts. `service` is the file that the service of this machine
/// names, for a command that is not run by its unit.
fn places(service: Option<&Path>) -> Vec<PathBuf> {
    in_order(home().ok(), service, Path::new(SERVICE_HOME))
}

/// The user's own file comes first, except for the user that the service runs as: the unit names the service's file.
fn in_order(home: Option<PathBuf>, service: Option<&Path>, service_home: &Path) -> Vec<PathBuf> {
    let is_service = home.as_ref().is_some_and(|home| home.starts_with(service_home));
    let own = home.map(|home| home.join("config.toml"));
    let mut places: Vec<PathBuf> = own.into_iter().chain(service.map(Path::to_owned)).collect();
    if is_service {
        places.reverse();
    }
    places
}

/// The file; `None` if none is named and none exists at the `places`.
fn file(given: &ArgMatches, places: &[PathBuf]) -> Result<Option<File>, Trouble> {
    match given.get_one::<PathBuf>("config") {
        Some(named) => read_file(named, true),
        None => first(places, is_elsewhere),
    }
}

/// The first file that exists. One in a folder of another user counts only if there is no other: with `sudo -u`, the home
/// folder may still be the caller's.
fn first(places: &[PathBuf], is_elsewhere: impl Fn(&Path) -> bool) -> Result<Option<File>, Trouble> {
    let mut denied = None;
    for path in places {
        match read_file(path, false) {
            Ok(None) => {}
            Err(trouble) if is_elsewhere(path) => denied = denied.or(Some(trouble)),
            found => return found,
        }
    }
    denied.map_or(Ok(None), Err)
}

/// Whether this user may not even see whether the file exists.
fn is_elsewhere(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn read_file(path: &Path, is_named: bool) -> Result<Option<File>, Trouble> {
    let wrong = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", path.display()));
    let mut text = String::new();
    match fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => return Ok(None),
        Err(error) => return Err(wrong(&error)),
        Ok(_) if text.len() as u64 > MAX_BYTES => return Err(wrong(&format!("it has more than {MAX_BYTES} bytes"))),
        Ok(_) => {}
    }
    let table = text.parse::<Table>().map_err(|error| wrong(&error))?;
    Ok(Some(File { path: path.to_owned(), table, lines: lines(&text) }))
}

/// The line of each key of a file that can be read, from 1.
fn lines(text: &str) -> BTreeMap<String, usize> {
    let keys = DeTable::parse(text).map(Spanned::into_inner).unwrap_or_default().into_iter();
    let line = |start: usize| 1 + text[..start].matches('\n').count();
    keys.map(|(key, _)| (key.get_ref().to_string(), line(key.span().start))).collect()
}

/// The flags that a file may contain.
fn of_file(node: &Command) -> impl Iterator<Item = (&Arg, &str)> {
    let flags = node.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    flags.filter(|(_, long)| !NOT_IN_FILE.contains(long))
}

/// The words that the file adds to the command line: its flags, except those that are given or in the environment.
fn added(node: &Command, given: &ArgMatches, table: &Table) -> Result<Vec<String>, Mistake> {
    let known: BTreeSet<&str> = of_file(node).map(|(_, long)| long).collect();
    if let Some(unknown) = table.keys().find(|key| !known.contains(key.as_str())) {
        let near = nearest(unknown, known.iter().copied());
        let right = match near.is_empty() {
            true => format!("it has {}", known.into_iter().collect::<Vec<_>>().join(", ")),
            false => format!("did you mean {}?", near.join(" or ")),
        };
        return Err(Mistake::of(unknown, format!("`meshtf node` has no flag {unknown}; {right}")));
    }
    let mut added = Vec::new();
    for (arg, long) in of_file(node) {
        let Some(value) = table.get(long) else { continue };
        let source = given.value_source(arg.get_id().as_str());
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            let wrong = |expected| Mistake::of(long, format!("{long} is {}; expected {expected}", kind(value)));
            added.extend(words(arg, long, value).map_err(wrong)?);
        }
    }
    Ok(added)
}

/// The words of the command line for a value of the file; or the values that are valid.
fn words(arg: &Arg, long: &str, value: &Value) -> Result<Vec<String>, &'static str> {
    let one = |value: &Value, expected: &'static str| match value {
        Value::String(text) => Ok(format!("--{long}={text}")),
        Value::Integer(number) => Ok(format!("--{long}={number}")),
        Value::Float(number) => Ok(format!("--{long}={number}")),
        _ => Err(expected),
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(is_set)) => Ok(is_set.then(|| format!("--{long}")).into_iter().collect()),
        (ArgAction::SetTrue, _) => Err("true or false"),
        (ArgAction::Count, Value::Integer(count @ 0..=9)) => Ok((0..*count).map(|_| format!("--{long}")).collect()),
        (ArgAction::Count, _) => Err("a number from 0 to 9"),
        (ArgAction::Append, Value::Array(values)) => {
            values.iter().map(|value| one(value, "a list of strings")).collect()
        }
        (ArgAction::Append, value) => Ok(vec![one(value, "a string or a list of strings")?]),
        (_, value) => Ok(vec![one(value, "a string or a number")?]),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a time",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// A configuration as a file: the help of each flag, and its value; a comment if it has none.
fn printed(node: &Command, matches: &ArgMatches) -> String {
    let mut text = String::new();
    for (arg, long) in of_file(node) {
        let help = arg.get_help().map(|help| help.to_string()).unwrap_or_default();
        text.push_str(&format!("# {}\n", help.lines().next().unwrap_or_default()));
        let values: Vec<String> = matches
            .get_raw(arg.get_id().as_str())
            .into_iter()
            .flatten()
            .map(|value| quoted(&value.to_string_lossy()))
            .collect();
        // A flag that is not set is shown, and left to its default.
        let is_default =
            matches.value_source(arg.get_id().as_str()).is_none_or(|source| source == ValueSource::DefaultValue);
        text.push_str(if is_default { "# " } else { "" });
        text.push_str(&match (arg.get_action(), &values[..]) {
            (ArgAction::SetTrue, _) => format!("{long} = {}\n", matches.get_flag(arg.get_id().as_str())),
            (ArgAction::Count, _) => format!("{long} = {}\n", matches.get_count(arg.get_id().as_str())),
            (ArgAction::Append, values) => format!("{long} = [{}]\n", values.join(", ")),
            (_, []) => format!("{long} =\n"),
            (_, [value, ..]) => format!("{long} = {value}\n"),
        });
    }
    text
}

/// A value as TOML: a number as it is, a string in quotes. JSON's escapes are among TOML's.
fn quoted(value: &str) -> String {
    match value.parse::<i64>() {
        Ok(number) if number.to_string() == value => value.to_owned(),
        // `007` is a name.
        _ => serde_json::Value::from(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    /// The configuration of a command line and a file, as a file.
    fn parsed(text: &str, config: &str) -> Result<Table, String> {
        let folder = temp_dir::TempDir::new().unwrap();
        let file = folder.path().join("c.toml");
        fs::write(&file, config).unwrap();
        let mut line = line(text);
        line.extend(["--config".into(), file.into()]);
        match parse(line) {
            Ok((_, printed)) => Ok(printed.expect("a node's").parse().expect("it is TOML")),
            Err(Wrong::File(trouble)) => Err(trouble.to_string()),
            Err(Wrong::Usage(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_file_has_what_the_command_line_leaves_open() {
        let config = "name = \"ps/3\"\nlisten = [\"0.0.0.0:4001\", \"[::]:4001\"]\npeer = \"a:1\"\nno-mdns = true\n\
            grpc = \"127.0.0.1:2222\"\ngrpc-limit = 1000\nverbose = 2\nopen = false\n";
        let table = parsed("meshtf node --peer b:2,c:3 --mesh lab", config).unwrap();
        let text = |key: &str| table[key].as_str();
        let list = |key: &str| table[key].as_array().map(Vec::len);
        assert_eq!((text("name"), text("mesh"), text("grpc")), (Some("ps/3"), Some("lab"), Some("127.0.0.1:2222")));
        assert_eq!((list("peer"), list("listen")), (Some(2), Some(2)), "the command line has the last word");
        assert_eq!((table["grpc-limit"].as_integer(), table["verbose"].as_integer()), (Some(1000), Some(2)));
        // A flag that is not set is left to its default.
        assert_eq!((table["no-mdns"].as_bool(), table.get("open"), table.get("burn")), (Some(true), None, None));
        // The printed file leads to the same configuration.
        let (_, printed) = parse(line("meshtf node --name ps/3 --listen 0.0.0.0:1 --memory 50%")).ok().unwrap();
        let again = parsed("meshtf node", &printed.unwrap()).unwrap();
        assert_eq!((again["name"].as_str(), again["memory"].as_str()), (Some("ps/3"), Some("50%")));
        let (_, printed) = parse(line("meshtf node --name ps/3 --mesh 007 --data 18446744073709551615")).ok().unwrap();
        let again = parsed("meshtf node", &printed.unwrap()).unwrap();
        assert_eq!((again["mesh"].as_str(), again["data"].as_str()), (Some("007"), Some("18446744073709551615")));
        assert_eq!(parsed("meshtf node --name ps/4", config).unwrap()["name"].as_str(), Some("ps/4"));
    }

    #[test]
    fn a_wrong_file_is_told_with_its_name_and_key() {
        let check = |config: &str, parts: &[&str]| {
            let why = parsed("meshtf node", config).expect_err(config);
            assert!(why.contains("c.toml"), "{why}");
            assert!(!why.contains("For more information") && !why.contains("Usage:"), "{why}");
            parts.iter().for_each(|part| assert!(why.contains(part), "{part}: {why}"));
        };
        check("nam = \"ps/0\"", &["c.toml line 1: ", "has no flag nam", "did you mean name?"]);
        check("nmae = \"ps/0\"", &["has no flag nmae; did you mean name?"]);
        check("peers = [\"a:1\"]", &["has no flag peers; did you mean peer?"]);
        check("colour = 1", &["has no flag colour; it has backend, burn,"]);
        let config = "# a node\nname = \"ps/0\"\n\nlisten = \"0.0.0.0\"";
        check(config, &["c.toml line 4: ", "'--listen <ADDR>'", "it has no port", "0.0.0.0:4001"]);
        check("peer = [\"a:1\", \"10.0.0.7:port\"]", &["'10.0.0.7:port' for '--peer <ADDR>'", "not a port number"]);
        check("name = \"ps/0\"\nconfig = \"x\"", &["has no flag config"]);
        check("name = 7", &["invalid value '7' for '--name"]);
        check("name = \"ps\"", &["invalid value 'ps' for '--name"]);
        check("name = \"ps/0\"\nopen = \"yes\"", &["c.toml line 2: open is a string; expected true or false"]);
        check("verbose = 99", &["verbose is an integer; expected a number from 0 to 9"]);
        check("listen = [1.5, true]", &["listen is a list; expected a list of strings"]);
        check("name = [\"ps/0\"]", &["name is a list; expected a string or a number"]);
        check("name = \"ps/0", &["line 1"]);
    }

    #[test]
    fn doctor_takes_what_a_node_would_and_tells_what_a_node_would_refuse() {
        let folder = temp_dir::TempDir::new().unwrap();
        let path = folder.path().join("c.toml");
        let parsed = |text: &str, config: &str| {
            fs::write(&path, config).unwrap();
            let mut line = line(text);
            line.extend(["--config".into(), path.clone().into()]);
            let Ok((Cli { command: super::super::Command::Doctor(args), .. }, None)) = parse(line) else {
                panic!("{text}")
            };
            args
        };
        let config = "name = \"ps/3\"\nmesh = \"lab\"\nlisten = [\"0.0.0.0:4001\"]\npeer = [\"a:1\", \"b:2\"]\ndata = \"/d\"\n\
            open = true\nno-mdns = true\nverbose = 2\n";
        let args = parsed("meshtf doctor --peer c:3", config);
        assert_eq!((&args.mesh.mesh[..], args.mesh.open, args.mesh.no_mdns), ("lab", true, true));
        assert_eq!(
            (&args.mesh.peer[..], &args.listen[..]),
            (&["c:3".to_owned()][..], &["0.0.0.0:4001".to_owned()][..])
        );
        assert_eq!(args.data, Some(PathBuf::from("/d")));
        let flags = ["data", "listen", "mesh", "name", "no-mdns", "open", "peer", "verbose"].map(str::to_owned);
        assert_eq!(args.found, Found::Read { path: path.clone(), flags: flags.to_vec() });
        // An entry that a node would refuse is reported, and the rest is checked without the file.
        for (config, part) in [("nam = 1", "no flag nam"), ("name = 7", "'7' for '--name"), ("mesh = \"", "line 1")] {
            let args = parsed("meshtf doctor", config);
            assert!(
                matches!(&args.found, Found::Wrong(why) if why.contains(part) && why.contains("c.toml")),
                "{args:?}"
            );
            assert_eq!(args.mesh.mesh, "meshtf");
        }
        fs::remove_file(&path).unwrap();
        let named = ["meshtf".into(), "doctor".into(), "--config".into(), path.clone().into_os_string()];
        let Ok((Cli { command: super::super::Command::Doctor(args), .. }, None)) = parse(named) else { panic!() };
        assert!(matches!(args.found, Found::Wrong(_)), "a file that is named is there: {args:?}");
    }

    /// The user's own file comes before that of the machine's service.
    #[test]
    fn the_first_file_that_exists_counts() {
        let folder = temp_dir::TempDir::new().unwrap();
        let places = ["own.toml", "service.toml"].map(|name| folder.child(name));
        let given = flags_of(DOCTOR).try_get_matches_from([DOCTOR]).unwrap();
        let mesh = || {
            let found = file(&given, &places).unwrap();
            found.map(|file| (file.path, file.table["mesh"].as_str().unwrap().to_owned()))
        };
        assert_eq!(mesh(), None);
        for (path, name) in places.iter().zip(["own", "service"]).rev() {
            fs::write(path, format!("mesh = \"{name}\"")).unwrap();
            assert_eq!(mesh(), Some((path.clone(), name.to_owned())));
        }
    }

    #[test]
    fn the_services_user_has_the_services_file_and_a_folder_of_others_hides_none() {
        let folder = temp_dir::TempDir::new().unwrap();
        let (service, home) = (folder.child("service.toml"), folder.child("home"));
        let own = home.join("config.toml");
        let places = |service_home: &Path| in_order(Some(home.clone()), Some(&service), service_home);
        assert_eq!(places(Path::new("/var/lib/none")), [own.clone(), service.clone()]);
        assert_eq!(places(folder.path()), [service.clone(), own.clone()]);
        assert_eq!(in_order(None, Some(&service), folder.path()), std::slice::from_ref(&service));

        fs::create_dir(&home).unwrap();
        fs::write(&own, "mesh = \"").unwrap();
        let both = [own.clone(), service.clone()];
        assert!(first(&both, |_| true).is_err(), "it is the only one");
        fs::write(&service, "mesh = \"lab\"").unwrap();
        assert_eq!(first(&both, |path| path == own).unwrap().map(|file| file.path), Some(service));
        assert!(first(&both, |_| false).is_err(), "the user's own file is wrong");
    }

    #[test]
    fn other_commands_have_no_file() {
        assert!(matches!(parse(line("meshtf ps --mesh lab")), Ok((_, None))));
        assert!(matches!(parse(line("meshtf ps --config x")), Err(Wrong::Usage(_))));
    }
}
