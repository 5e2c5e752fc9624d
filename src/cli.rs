//! The command line: arguments in, text out, one file per subcommand.
//!
//! Results go to stdout and everything else to stderr. Each way to end has an exit code ([`Exit`]). This module only parses and
//! prints; the library plans and runs graphs, and a program can use it without this module.

/// Like `std`'s, but without a panic if stderr cannot be written (closed, a full disk, a reader that went away), since
/// the messages there only accompany a result. Defined before the modules, so that they all use it.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($text)*);
    }};
}

mod attach;
mod bar;
mod burn;
mod cache;
mod complete;
mod completions;
mod config;
mod detached;
mod differentiate;
mod divided;
mod doctor;
mod events;
mod example;
mod export;
mod failure;
mod feeds;
mod first_values;
mod generate;
mod groups;
mod guard;
mod host;
mod inputs;
mod inspect;
mod join;
mod launching;
mod log;
mod man;
mod memory;
mod new;
mod node;
mod ops;
mod os_error;
mod output;
mod paint;
mod place;
mod plan;
mod predict;
mod predictions;
mod ps;
mod ranked;
mod reach;
mod run;
mod runs;
mod serve;
mod server;
mod signals;
mod stages;
mod states;
mod status;
mod stop;
mod submit;
mod summary;
mod table;
mod tf;
mod ticket;
mod top;
mod trace;
mod train;
mod trained;
mod tuned;
mod variable;
mod verify;
mod written;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
pub use failure::Exit;
use failure::Trouble;
pub use meshtf::mesh::home;
use meshtf_tensor::memory::{Budget, tell_all};

/// The result of a subcommand: its exit code, or the error that ended it.
type Outcome = Result<Exit, Trouble>;

/// The position of the flags that all commands have: after a command's own.
const LAST: usize = 900;

const EXAMPLES: &str = "\
Examples:
  meshtf node --name local/0     serve a task; in another shell: --name local/1
  meshtf submit graph.json       run a graph on the nodes that are up
  meshtf submit graph.json --fetch loss --feed x=@x.npy --steps 1000
  meshtf run graph.json          run it in this process, without a network
  meshtf plan graph.json         show placement and transfers without a run
  meshtf summary digits.json     layers, shapes, parameters, memory
  meshtf inspect model.onnx      inputs, outputs, ops, tensors of any model
  meshtf differentiate graph.json --of loss --by w --out trained.json
                                 add gradients
  meshtf new table houses.csv    write a model for a table, series, images
  meshtf train digits.json       train a graph with data from files
  meshtf predict digits.json run1 new.npy
                                 apply it to new files
  meshtf export run1 --to model.npz
                                 convert the weights of a training
  meshtf runs                    list trainings and long runs, with results
  meshtf tf -- python trainer.py --job_name=ps --task_index=0
                                 run a TensorFlow 1 program
  meshtf ps                      list the tasks that are up
  meshtf status                  show their state
  meshtf doctor                  diagnose nodes that do not find each other
  meshtf ticket                  on another machine, then: meshtf join TICKET

Exit codes:
  0  success
  1  verify: a case differs; doctor: there is a problem
  2  bad input: the command line, a file, the graph, a feed, a fetch, a name;
     or output that cannot be written
  3  a step failed, or some of the graph's variables are uninitialized
  4  the mesh: no node up, a task down or lost, a full node, a rejected key,
     a name already taken
  5  timed out
  129, 130, 143  SIGHUP, SIGINT (Ctrl-C) or SIGTERM: submit cancelled its steps,
     train finished the current step and saved

Environment:
  MESHTF_HOME    folder with the mesh key and this machine's node registry
  MESHTF_MESH    name of the mesh (--mesh)
  MESHTF_PEERS   addresses to dial, separated by commas (--peer)
  MESHTF_MEMORY  memory budget of a process that runs graphs (--memory)
  MESHTF_CACHE   limit of the weights that a node keeps on the disk (--cache)
  MESHTF_CONFIG  configuration file of node and doctor (--config)
  MESHTF_NO_RECORD  if set, no record for meshtf runs (--no-record)
  MESHTF_LOG     levels of the log on stderr: debug, or meshtf::mesh=trace
  MESHTF_LOG_FORMAT  text, or json for an object per line (--log-format)
  NO_COLOR       if set, no colours; pipes and files have none anyway

Manual pages:
  meshtf COMMAND --help                    the page of one command
  meshtf man ~/.local/share/man/man1       all pages, for man meshtf-node";

/// TensorFlow 1's distributed runtime as one binary: named nodes find each other, and a graph is split over them by its
/// device strings.
#[derive(Debug, Parser)]
#[command(name = "meshtf", version, max_term_width = 110, after_help = EXAMPLES, propagate_version = true)]
#[command(help_template = groups::template())]
pub struct Cli {
    /// Log more on stderr: steps and transfers; -vv and -vvv log still more
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = LAST)]
    verbose: u8,
    /// Format of the log on stderr
    #[arg(long, value_name = "FORMAT", env = "MESHTF_LOG_FORMAT", default_value = "text", global = true, display_order = LAST)]
    log_format: log::LogFormat,
    #[command(subcommand)]
    command: Command,
}

/// The first line of each command's `Args` is its line in the list of `meshtf --help`.
#[derive(Debug, Subcommand)]
enum Command {
    Node(node::Args),
    Server(server::Args),
    Tf(tf::Args),
    Submit(submit::Args),
    Attach(attach::Args),
    Stop(stop::Args),
    Run(run::Args),
    Serve(serve::Args),
    Burn(burn::Args),
    Ps(ps::Args),
    Status(status::Args),
    Top(top::Args),
    Events(events::Args),
    Variable(variable::Args),
    Cache(cache::Args),
    Plan(plan::Args),
    Summary(summary::Args),
    Ops(ops::Args),
    Inspect(inspect::Args),
    Differentiate(differentiate::Args),
    Example(example::Args),
    New(new::Args),
    Train(train::Args),
    Predict(predict::Args),
    Generate(generate::Args),
    Runs(runs::Args),
    Export(export::ExportArgs),
    Import(export::ImportArgs),
    Doctor(doctor::Args),
    Ticket(ticket::Args),
    Join(join::Args),
    Verify(verify::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Runs the command line of this process. `has_stdout` is whether it was started with a standard output, which only `main` can
/// find out, before Rust replaces a closed one by /dev/null.
pub fn main(has_stdout: bool) -> ExitCode {
    if !has_stdout {
        output::has_no_stdout();
    }
    if let Some(code) = complete::answer() {
        return code;
    }
    // Before the command line is read, which may fail.
    paint::speak_json(std::env::var_os("MESHTF_LOG_FORMAT").is_some_and(|format| format == "json"));
    let cli = match config::parse(arguments(std::env::args_os().collect())) {
        Ok((cli, printed)) => match (&cli.command, printed) {
            (Command::Node(args), Some(printed)) if args.prints_config() => {
                return ended(output::line(printed.trim_end()).map(|()| Exit::Ok));
            }
            _ => cli,
        },
        Err(config::Wrong::File(trouble)) => return ended(Err(trouble)),
        Err(config::Wrong::Usage(error)) => {
            // Help and version are reported as errors, too.
            let code = if error.use_stderr() { Exit::BadInput } else { Exit::Ok };
            let printed = error.print().err().map(|error| Trouble::stdout(error).exit);
            return printed.unwrap_or(code).max(code).into();
        }
    };
    let is_node = match &cli.command {
        Command::Node(_) => true,
        Command::Server(args) => args.is_on_its_own(),
        _ => false,
    };
    log::to_stderr(cli.verbose, cli.log_format, is_node);
    if let Err(error) = meshtf::descriptors::raise() {
        tracing::debug!("the limit of open files is still {}: {error}", meshtf::descriptors::limit());
    }
    ended(dispatch(cli.command))
}

/// The exit code of an outcome, after its error is reported.
fn ended(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(exit) => exit.into(),
        Err(trouble) => {
            if !trouble.is_closed_pipe() {
                paint::complain(&trouble);
            }
            trouble.exit.into()
        }
    }
}

/// The arguments of this process. If it is called by the name of TensorFlow's server, they are those of `meshtf server`.
fn arguments(mut all: Vec<OsString>) -> Vec<OsString> {
    if all.first().is_some_and(|program| server::is_called(program)) {
        all.splice(..1, ["meshtf".into(), "server".into()]);
    }
    all
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Node(args) => within(args.memory.budget(), |budget| node::node(args, budget)),
        Command::Server(args) => within(args.memory.budget(), |budget| server::server(args, budget)),
        Command::Tf(args) => tf::tf(args),
        Command::Submit(args) => in_runtime(submit::submit(args)),
        Command::Attach(args) => in_runtime(attach::attach(args)),
        Command::Stop(args) => in_runtime(stop::stop(args)),
        Command::Run(args) => within(args.memory.budget(), |budget| run::run(args, budget)),
        Command::Serve(args) => within(args.host.memory.budget(), |budget| serve::serve(args, budget)),
        Command::Burn(args) => within(args.memory.budget(), |budget| burn::burn(args, budget)),
        Command::Ps(args) => in_runtime(ps::ps(args)),
        Command::Status(args) => in_runtime(status::status(args)),
        Command::Top(args) => in_runtime(top::top(args)),
        Command::Events(args) => in_runtime(events::events(args)),
        Command::Variable(args) => in_runtime(variable::variable(args)),
        Command::Cache(args) => in_runtime(cache::cache(args)),
        Command::Plan(args) => in_runtime(plan::plan(args)),
        Command::Summary(args) => summary::summary(args),
        Command::Ops(args) => ops::ops(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Differentiate(args) => differentiate::differentiate(args),
        Command::Example(args) => example::example(args),
        Command::New(args) => new::new(args),
        Command::Train(args) => within(args.host.memory.budget(), |budget| train::train(args, budget)),
        Command::Predict(args) => within(args.trained.host.memory.budget(), |budget| predict::predict(args, budget)),
        Command::Generate(args) => within(args.trained.host.memory.budget(), |budget| generate::generate(args, budget)),
        Command::Runs(args) => in_runtime(runs::runs(args)),
        Command::Export(args) => export::export(args),
        Command::Import(args) => export::import(args),
        Command::Doctor(args) => in_runtime(doctor::doctor(args)),
        Command::Ticket(args) => in_runtime(ticket::ticket(args)),
        Command::Join(args) => in_runtime(join::join(args)),
        Command::Verify(args) => in_runtime(verify::verify(args)),
        Command::Completions(args) => completions::completions(args),
        Command::Man(args) => man::man(args),
    }
}

fn in_runtime(work: impl Future<Output = Outcome>) -> Outcome {
    within(Arc::default(), |_| work)
}

/// Does the work of a command that computes with a memory budget. The budget is in force on every thread of the command, which
/// reads graphs and data on them, too.
fn within<W: Future<Output = Outcome>>(budget: Arc<Budget>, work: impl FnOnce(Arc<Budget>) -> W) -> Outcome {
    budget.for_thread();
    let of_thread = Arc::clone(&budget);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(network_threads())
        .enable_all()
        .on_thread_start(move || of_thread.for_thread())
        .on_thread_stop(tell_all)
        .build()
        .map_err(|error| Trouble::mesh(format!("the async runtime failed to start: {error}")))?;
    let outcome = runtime.block_on(work(budget));
    // Background tasks that still sleep have nothing left to report.
    runtime.shutdown_background();
    outcome
}

/// Threads for the network: half of the cores, since devices compute on all of them, and no more than sockets keep busy. One
/// too many costs time: each incoming message would wake a second thread that finds no work.
fn network_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 4))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_budget_is_in_force_on_every_thread_of_its_command() {
        let limit = || Budget::current().limit();
        let work = async |budget: Arc<Budget>| {
            let [network, files] = [tokio::spawn(async move { limit() }), tokio::task::spawn_blocking(limit)];
            let limits = [budget.limit(), limit(), network.await.unwrap(), files.await.unwrap()];
            assert_eq!(limits, [Some(1 << 40); 4]);
            Ok(Exit::Ok)
        };
        assert!(within(Budget::of(1 << 40), work).is_ok());
        assert!(in_runtime(async { Ok(Exit::Ok) }).is_ok());
        assert_eq!(limit(), None);
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn invalid_command_lines_are_bad_input() {
        let check = |line: &str, right: bool| {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert_eq!(parsed.is_ok(), right, "{line}: {parsed:?}");
        };
        check("meshtf node --name local/0", true);
        check("meshtf node --name /job:local/task:0 --peer /ip4/10.0.0.1/tcp/4001", true);
        check("meshtf node --name local", false);
        check("meshtf node", false);
        check("meshtf node --name local/0 --memory 4GB", true);
        check("meshtf run graph.json --memory 50%", true);
        check("meshtf run graph.json --memory lots", false);
        check("meshtf submit graph.json --memory 4GB", false);
        check("meshtf submit graph.json --fetch y --feed x=2.5 --target local/1 --steps 3 --json", true);
        check("meshtf submit graph.json --steps 0", false);
        check("meshtf submit graph.json --feed x", false);
        check("meshtf submit graph.json --timeout soon", false);
        check("meshtf submit graph.json --timeout 1.5", true);
        check("meshtf submit graph.json --steps 9 --detach --json", true);
        check("meshtf submit graph.json --detach --out y.npy", false);
        check("meshtf run graph.json --detach", false);
        check("meshtf train graph.json --detach --target ps/0 --json", true);
        check("meshtf train graph.json --detach --heir", false);
        check("meshtf attach 3f09", true);
        check("meshtf attach", false);
        check("meshtf stop 3f09 a1c2 --at-once", true);
        check("meshtf stop", false);
        check("meshtf status ps/0 --json", true);
        check("meshtf status ps", false);
        check("meshtf variable get ps/0 w --device gpu:0", true);
        check("meshtf variable get ps/0", false);
        check("meshtf variable set ps/0 w -2.5 --if-version 3", true);
        check("meshtf burn -- cargo run --release", true);
        check("meshtf burn", false);
        check("meshtf server --cluster_spec=ps|localhost:2222 --job_name=ps --task_index=0", true);
        check("meshtf server --task_index=-1", false);
        check("meshtf tf --data /tmp -- python trainer.py --job_name=ps", true);
        check("meshtf tf", false);
        check("meshtf differentiate graph.json --of loss --by w1,w2 --out g.pb", true);
        check("meshtf differentiate graph.json --of loss --by w1,w2 --out g.txt", false);
        check("meshtf differentiate graph.json --of loss --out g.pb", false);
        check("meshtf train digits.json --local --checkpoint run1 --resume", true);
        check("meshtf train digits.json --local --resume", false);
        check("meshtf train digits.json --checkpoint run1 --resume --weights run0", false);
        check("meshtf export run1 --to model.npz", true);
        check("meshtf export run1", false);
        check("meshtf predict model.json run1 new.csv more.csv --local --out y.csv", true);
        check("meshtf predict model.json run1", false);
        check("meshtf generate model.json run1 --prompt Once --temperature 0.5 --top-k 5 --seed 1 --local", true);
        check("meshtf generate model.json run1 --temperature -1", false);
        check("meshtf predict model.json run1 new.csv --data files", false);
        check("meshtf runs", true);
        check("meshtf runs -n 5 --json", true);
        check("meshtf runs show last", true);
        check("meshtf runs show", false);
        check("meshtf runs compare 3f09", false);
        check("meshtf runs remove --older 30d", true);
        check("meshtf runs remove 3f09 --older 30d", false);
        check("meshtf runs remove --older soon", false);
        check("meshtf runs remove", false);
        check("meshtf import model.npz --to run2", true);
        check("meshtf verify", false);
        check("meshtf summary model.pb --depth 2 --batch 32 --json", true);
        check("meshtf summary model.pb --batch 0", false);
        check("meshtf new series power.csv --label load", true);
        check("meshtf completions fish", true);
        check("meshtf launch", false);
    }
}
