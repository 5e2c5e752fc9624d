//! `meshtf server`: tasks of a ClusterSpec. `meshtf tf`: the environment and the arguments of a program.

use std::process::Command;
use std::time::Duration;

use crate::sandbox::{NodeProcess, Running, SPLIT_238, Sandbox, wait_until};

/// Two tasks at ports that the system picks, in the form of TensorFlow's first servers.
const SPEC: &str = "local|127.0.0.1:0;localhost:0";

fn server(sandbox: &Sandbox, arguments: &[&str]) -> NodeProcess {
    let all = [&["server", "--listen", "127.0.0.1:0"], arguments].concat();
    NodeProcess::start(sandbox.start(&all), &format!("{arguments:?}"))
}

#[test]
fn tasks_of_a_cluster_spec_serve_and_find_each_other() {
    let sandbox = Sandbox::new();
    let spec = format!("--cluster_spec={SPEC}");
    let first = server(&sandbox, &[&spec, "--job_name=local", "--task_index=0"]);
    // The second as a link of the name of TensorFlow's server.
    let link = sandbox.path("grpc_tensorflow_server");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_meshtf"), &link).unwrap();
    let mut command = Command::new(&link);
    let like = sandbox.command(&[]);
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args([&spec, "--job_name=local", "--task_index=1", "--listen=127.0.0.1:0"]);
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let second = NodeProcess::start(Running::start(command, "the link".to_owned()), "local/1");
    for (i, node) in [&first, &second].into_iter().enumerate() {
        assert!(node.line.starts_with(&format!("local/{i} serves ")), "{}", node.line);
        assert!(node.said("grpc").starts_with("127.0.0.1:"), "{}", node.line);
    }
    sandbox.run(&["submit", &sandbox.file("sum.json", SPLIT_238)]).prints("238");
    // A task that is taken.
    let taken = sandbox.run(&["server", &spec, "--job_name=local", "--task_index=0"]).expect(4);
    taken.complains(&["/job:local/task:0"]);
}

#[test]
fn mistakes_in_a_cluster_are_bad_input() {
    let sandbox = Sandbox::new();
    for (arguments, says) in [
        (&[][..], "there is no cluster"),
        (&["--cluster_spec=local"], "--cluster_spec: \"local\" has no bar after a job's name"),
        (&["--cluster_spec=a|h:1,b|h:2"], "--job_name is missing: the cluster has several jobs"),
        (&["--cluster_spec=a|h:1;h:2", "--task_index=2"], "the cluster has no task a/2; its tasks are a/0, a/1"),
        (&["--cluster_spec=a|here"], "the address of a/0 in the cluster: \"here\" is not HOST:PORT"),
    ] {
        sandbox.run(&[&["server"], arguments].concat()).expect(2).complains(&[says]);
    }
}

#[test]
fn a_server_ends_with_the_program_that_started_it() {
    let sandbox = Sandbox::new();
    let arguments = ["server", "--cluster_spec=local|127.0.0.1:0", "--private", "--parent"];
    // Its input has ended already.
    let own = std::process::id().to_string();
    sandbox.run(&[&arguments[..], &[&own]].concat()).expect(0);
    // Its input does not end, since it has the other end itself; its parent is killed.
    let script = "mkfifo $1; exec 3<>$1; shift; \"$0\" \"$@\" $$ <&3 & echo $!; wait";
    let like = sandbox.command(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_meshtf")).arg(sandbox.path("fifo")).args(arguments);
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let parent = Running::start(command, "a parent".to_owned());
    let pid = parent.next_line(Duration::from_secs(60)).expect("it says its child's id");
    let line = parent.next_line(Duration::from_secs(60)).unwrap_or_else(|| panic!("{}", parent.stderr()));
    assert!(line.starts_with("local/0 serves "), "{line}");
    // Its mesh ends with it; the files that its graphs save do not.
    assert!(sandbox.path("data").join(&sandbox.mesh).join("local-0").is_dir());
    let lives = || {
        Command::new("sh")
            .args(["-c", &format!("kill -0 {} 2>/dev/null", pid.trim())])
            .status()
            .is_ok_and(|status| status.success())
    };
    assert!(lives());
    parent.signal("KILL");
    assert!(wait_until(Duration::from_secs(30), || !lives()), "{pid} lives on");
}

#[test]
fn a_program_of_tensorflow_gets_the_python_path_and_keeps_its_exit_code() {
    let sandbox = Sandbox::new();
    let script =
        "ls ${PYTHONPATH%%:*}; echo ${PYTHONPATH#*:}; echo $MESHTF_SERVER_FLAGS; test -x $MESHTF_BINARY; exit 7";
    let mut command = sandbox.command(&["tf", "--memory", "1GB", "--no-mdns", "--", "sh", "-c", script]);
    command.env("PYTHONPATH", "/own");
    let ended = Running::start(command, "tf".to_owned()).end().expect(7);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[..3], ["meshtf_tf", "sitecustomize.py", "/own"], "{}", ended.stdout);
    let flags: Vec<String> = serde_json::from_str(lines[3]).expect("a list of flags");
    let expected = ["--data", "/", "--backend", "auto", "--memory", "1000000000", "--mesh", &sandbox.mesh, "--no-mdns"];
    assert_eq!(flags, expected);
    // A relative home folder keeps its meaning when the program changes its folder.
    let script = "cd / && test -f ${PYTHONPATH%%:*}/sitecustomize.py && echo $MESHTF_HOME";
    let mut command = sandbox.command(&["tf", "--", "sh", "-c", script]);
    command.current_dir(sandbox.path("")).env("MESHTF_HOME", "own");
    let ended = Running::start(command, "tf".to_owned()).end().expect(0);
    let own = std::path::Path::new(ended.stdout.trim());
    assert_eq!(own.canonicalize().unwrap(), sandbox.path("own").canonicalize().unwrap());
    assert!(own.is_absolute(), "{}", own.display());
    let mut command = sandbox.command(&["tf", "--", "true"]);
    command.env("MESHTF_HOME", sandbox.path("a:b"));
    Running::start(command, "tf".to_owned()).end().expect(2).complains(&["a folder with a colon"]);
    let ended = sandbox.run(&["tf", "--", "/no/such/program"]).expect(2);
    ended.complains(&["cannot run /no/such/program: No such file"]);
}
