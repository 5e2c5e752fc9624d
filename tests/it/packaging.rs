//! The packages: built on this machine with the binary of the tests, installed, started and removed; this system does not
//! change.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::network::Namespaces;
use crate::sandbox::Sandbox;
use meshtf_testing::means::{Means, missing};

/// The steps with the package `$1` in a copy of this system, each reported on a line.
const INSTALL: &str = r#"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
# Quickly: nothing here has to outlive a power failure, and nobody reads the index of manual pages.
package=$1
put() { dpkg --no-triggers --force-unsafe-io --install "$package"; }
put >/dev/null
echo "version $(meshtf --version)"
echo "user $(getent passwd meshtf | cut -d: -f6,7), home $(stat -c '%U %G %a' /var/lib/meshtf)"
echo "conffiles $(dpkg-query -W -f '${Conffiles}' meshtf | cut -d' ' -f2)"
for file in usr/share/man/man1/meshtf-node.1.gz usr/share/bash-completion/completions/meshtf \
        usr/share/doc/meshtf/copyright usr/share/doc/meshtf/docs/install.md usr/share/doc/meshtf/docs/top.svg \
        usr/share/doc/meshtf/examples/graph.json usr/share/doc/meshtf/examples/train/digits.npy usr/share/doc/meshtf/THIRD-PARTY-LICENCES.txt.gz; do
    [ -s "/$file" ] && echo "has $file"
done
bash -n /usr/share/bash-completion/completions/meshtf && echo "completions are right"
dpkg --verify meshtf && echo "as packed"
command -v systemd-analyze >/dev/null && systemd-analyze verify --man=no /usr/lib/systemd/system/meshtf@.service 2>&1
su meshtf -s /bin/sh -c 'meshtf node --name worker/0 --config /etc/meshtf/config.toml --print-config' | grep '^name'
echo '# mine' >>/etc/meshtf/config.toml
put >/dev/null </dev/null
echo "kept $(tail -n 1 /etc/meshtf/config.toml)"
dpkg --remove meshtf >/dev/null
wants=/etc/systemd/system/multi-user.target.wants
mkdir -p $wants
ln -s /usr/lib/systemd/system/meshtf@.service $wants/meshtf@worker-0.service
[ ! -e /usr/bin/meshtf ] && [ -e /var/lib/meshtf ] && [ -e /etc/meshtf/config.toml ] && echo removed
dpkg --purge meshtf >/dev/null 2>&1
[ ! -e /var/lib/meshtf ] && [ ! -e /etc/meshtf ] && [ ! -L $wants/meshtf@worker-0.service ] && echo purged
"#;

/// The package in systems that had the group, or the user without it, before.
const INSTALL_BESIDE: &str = r#"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
package=$1
put() { dpkg --no-triggers --force-unsafe-io --install "$package" >/dev/null; }
groupadd --system meshtf
put
echo "group first: $(id -gn meshtf) $(stat -c '%U %G %a' /var/lib/meshtf)"
dpkg --purge meshtf >/dev/null 2>&1
userdel meshtf
if getent group meshtf >/dev/null; then groupdel meshtf; fi
useradd --system --gid nogroup --home-dir /var/lib/meshtf meshtf
put
echo "user first: $(getent group meshtf | cut -d: -f1) $(stat -c '%U %G %a' /var/lib/meshtf)"
"#;

/// Replacements for the programs that `dist.sh` runs: cargo, which records the builds; rustc, which has the targets in
/// $STUBS/lib; and a small binary.
const STUBS: [(&str, &str); 5] = [
    (
        "cargo",
        r#"#!/bin/sh
case $1 in rustc) ;; *) exec "$REAL_CARGO" "$@" ;; esac
echo "$*" >>"$STUBS/asked"
built=$CARGO_TARGET_DIR/dist
case "$*" in *"--target "*) built=$CARGO_TARGET_DIR/$(echo "$*" | sed 's/.*--target \([^ ]*\).*/\1/')/dist ;; esac
mkdir -p "$built" && cp "$STUBS/meshtf" "$built/meshtf"
"#,
    ),
    (
        "rustc",
        r#"#!/bin/sh
if [ "$1" = --print ]; then echo "$STUBS/lib/$4"; else PATH=${PATH#*:} exec rustc "$@"; fi
"#,
    ),
    ("aarch64-linux-gnu-gcc", "#!/bin/sh\n"),
    ("musl-gcc", "#!/bin/sh\n"),
    // The C library that it needs is read from its text.
    ("meshtf", "#!/bin/sh\nexec \"$REAL_MESHTF\" \"$@\" # GLIBC_2.31\n"),
];

/// The folder of the project.
fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The output of one of the packaging scripts, on this test's binary.
fn script(name: &str, out: &Path) -> String {
    let output = Command::new("bash")
        .arg(project().join("packaging").join(name))
        .args([env!("CARGO_BIN_EXE_meshtf").as_ref(), out])
        .env("CARGO", env!("CARGO"))
        .envs([("MESHTF_LEVEL", "1"), ("MESHTF_BUILDERS", ""), ("MESHTF_TARGETS", "")])
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a path").trim().to_owned()
}

/// Runs `.ci/copy`: a script, with a file, in a copy of this system.
fn in_a_copy(words: &[&str]) -> Output {
    let script = project().join(".ci/copy");
    Command::new("bash").arg(script).args(words).stdin(Stdio::null()).output().expect("bash runs")
}

/// Whether this machine can make packages, and a copy of this system.
fn can_install() -> bool {
    in_a_copy(&[]).status.success()
}

#[test]
fn a_package_is_installed_and_removed() {
    if !can_install() {
        return missing(Means::Packages, "a Debian package");
    }
    let sandbox = Sandbox::new();
    let package = script("deb.sh", &sandbox.path("out"));
    let ran = in_a_copy(&[&package, INSTALL]);
    let (told, wrong) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let version = format!("version meshtf {}", env!("CARGO_PKG_VERSION"));
    let want = [
        version.as_str(),
        "user /var/lib/meshtf:/usr/sbin/nologin, home meshtf meshtf 700",
        "conffiles /etc/meshtf/config.toml",
        "has usr/share/man/man1/meshtf-node.1.gz",
        "has usr/share/bash-completion/completions/meshtf",
        "has usr/share/doc/meshtf/copyright",
        "has usr/share/doc/meshtf/docs/install.md",
        "has usr/share/doc/meshtf/docs/top.svg",
        "has usr/share/doc/meshtf/examples/graph.json",
        "has usr/share/doc/meshtf/examples/train/digits.npy",
        "has usr/share/doc/meshtf/THIRD-PARTY-LICENCES.txt.gz",
        "completions are right",
        "as packed",
        "name = \"worker/0\"",
        "kept # mine",
        "removed",
        "purged",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), want, "{wrong}");
    assert!(!Path::new("/var/lib/meshtf").exists(), "this system is as it was");
}

#[test]
fn a_package_is_installed_where_its_group_or_user_is_already() {
    if !can_install() {
        return missing(Means::Packages, "a Debian package beside its user");
    }
    let sandbox = Sandbox::new();
    let package = script("deb.sh", &sandbox.path("out"));
    let ran = in_a_copy(&[&package, INSTALL_BESIDE]);
    let (told, wrong) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let want = ["group first: meshtf meshtf meshtf 700", "user first: meshtf meshtf meshtf 700"];
    assert_eq!(told.lines().collect::<Vec<_>>(), want, "{wrong}");
}

/// Whether `dist.sh` succeeds, its stderr, and the builds that it requested of cargo.
fn dist(
    sandbox: &Sandbox,
    out: &str,
    targets: Option<&str>,
    variables: &[(&str, &str)],
) -> (bool, String, Vec<String>) {
    let stubs = sandbox.path("stubs");
    let _none = std::fs::remove_file(stubs.join("asked"));
    let mut command = Command::new("bash");
    command.arg(project().join("packaging/dist.sh")).arg(sandbox.path(out));
    let path = format!("{}:{}", stubs.display(), std::env::var("PATH").expect("a PATH"));
    command.env("PATH", path).env("CARGO", "cargo").env("STUBS", &stubs);
    command.env("CARGO_TARGET_DIR", sandbox.path("target")).env("REAL_CARGO", env!("CARGO"));
    command.env("REAL_MESHTF", env!("CARGO_BIN_EXE_meshtf"));
    command.envs([("MESHTF_LEVEL", "1"), ("MESHTF_BUILDERS", "")]).envs(variables.iter().copied());
    match targets {
        Some(targets) => command.env("MESHTF_TARGETS", targets),
        None => command.env_remove("MESHTF_TARGETS"),
    };
    let ran = command.output().expect("bash runs");
    let asked = std::fs::read_to_string(stubs.join("asked")).unwrap_or_default();
    let asked = asked.lines().map(str::to_owned).collect();
    (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned(), asked)
}

#[test]
fn targets_that_are_named_are_built_and_others_only_where_they_can_be() {
    if !can_install() {
        return missing(Means::Packages, "what is given away for other machines");
    }
    let sandbox = Sandbox::new();
    let (arm, musl) = ("aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl");
    for (name, text) in STUBS {
        std::fs::create_dir_all(sandbox.path("stubs/lib")).expect("a folder");
        let file = sandbox.path("stubs").join(name);
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    let named = format!("{arm} {musl}");
    std::fs::create_dir(sandbox.path("stubs/lib").join(arm)).expect("a folder");

    // Nothing is built if one of the targets cannot be built.
    let (is_done, told, asked) = dist(&sandbox, "none", Some(&named), &[]);
    assert!(!is_done && told.contains(musl) && told.contains(&format!("rustup target add {musl}")), "{told}");
    assert!(asked.is_empty() && !sandbox.path("none").exists(), "{asked:?}");
    let (is_done, told, _) = dist(&sandbox, "none", Some("riscv64gc-unknown-linux-gnu"), &[]);
    assert!(!is_done && told.contains("no C compiler is known for the target riscv64gc"), "{told}");
    let (is_done, told, _) = dist(&sandbox, "none", Some(""), &[("GPU", "none")]);
    assert!(!is_done && told.contains("GPU=none: expected yes, or no"), "{told}");

    // Without GPUs, for both kinds of machine; the last line names the missing ones.
    let (is_done, told, asked) = dist(&sandbox, "out", None, &[("GPU", "no")]);
    let last = format!("no archive for {musl}: it needs `rustup target add {musl}`");
    assert!(is_done && told.lines().last() == Some(&last), "{told}");
    let features = " --features ndarray,parquet ";
    assert!(asked.len() == 2 && asked.iter().all(|line| line.contains(features)), "{asked:?}");
    assert!(!asked[0].contains("--target") && asked[1].contains(&format!("--target {arm}")), "{asked:?}");
    let sums = std::fs::read_to_string(sandbox.path("out/SHA256SUMS")).expect("a file");
    let files: Vec<&str> = sums.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(files.len() == 3 && files.iter().any(|file| file.contains(arm)), "{sums}");

    for file in files.iter().filter(|file| file.ends_with(".tar.gz")) {
        let crates = crates_in(&sandbox.path("out").join(file));
        assert!(crates.contains("  libp2p 0.57.1: MIT") && !crates.contains("  wgpu "), "{file}");
    }

    // With GPUs by default; a static binary has none.
    std::fs::create_dir(sandbox.path("stubs/lib").join(musl)).expect("a folder");
    let (is_done, told, asked) = dist(&sandbox, "both", Some(&named), &[]);
    assert!(is_done && asked.len() == 3, "{told}");
    assert_eq!(asked.iter().map(|line| line.contains(features)).collect::<Vec<_>>(), [false, false, true], "{asked:?}");
    for (target, has_gpus) in [(arm, true), (musl, false)] {
        let archive = sandbox.path("both").join(format!("meshtf-{}-{target}.tar.gz", env!("CARGO_PKG_VERSION")));
        assert_eq!(crates_in(&archive).contains("  wgpu "), has_gpus, "{target}");
    }
}

/// The crates whose licences an archive has.
fn crates_in(archive: &Path) -> String {
    let list = format!("tar -xzOf '{}' --wildcards '*/THIRD-PARTY-LICENCES.txt.gz' | gzip -dc", archive.display());
    let read = Command::new("sh").args(["-c", &list]).output().expect("a shell");
    String::from_utf8_lossy(&read.stdout).into_owned()
}

#[test]
fn an_archive_has_the_binary_its_manual_and_all_licences() {
    if Command::new("python3").arg("--version").output().is_err() {
        return missing(Means::Packages, "an archive");
    }
    let sandbox = Sandbox::new();
    let archive = script("archive.sh", &sandbox.path("out"));
    let name = PathBuf::from(&archive).file_name().expect("a file").to_string_lossy().into_owned();
    assert!(name.starts_with(&format!("meshtf-{}-", env!("CARGO_PKG_VERSION"))) && name.ends_with(".tar.gz"), "{name}");
    let unpacked = sandbox.path("unpacked");
    std::fs::create_dir_all(&unpacked).expect("a folder");
    let tar = Command::new("tar").args(["-xzf", &archive, "--strip-components=1", "-C"]).arg(&unpacked).status();
    assert!(tar.is_ok_and(|status| status.success()));
    let same = |file: &str, original: &Path| {
        assert_eq!(std::fs::read(unpacked.join(file)).ok(), std::fs::read(original).ok(), "{file}");
    };
    same("meshtf", Path::new(env!("CARGO_BIN_EXE_meshtf")));
    same("LICENSE-MIT", &project().join("LICENSE-MIT"));
    for file in ["examples/graph.json", "examples/circle.csv", "examples/train/exp.json", "examples/train/digits.npy"] {
        same(file, &project().join(file));
    }
    // Links of the pages for users lead to files of the archive.
    for page in ["README.md", "docs/training.md", "docs/graph.md", "docs/tensorflow.md", "docs/operating.md"] {
        let text = std::fs::read_to_string(unpacked.join(page)).expect(page);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
        let folder = unpacked.join(page).parent().expect("a folder").to_owned();
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            assert!(folder.join(link).exists(), "{page} has a link to {link}");
        }
    }
    same("systemd/meshtf@.service", &project().join("packaging/meshtf@.service"));
    let folders = ["man/man1/meshtf.1.gz", "completions/_meshtf", "completions/meshtf.fish", "completions/meshtf.bash"];
    for file in folders {
        assert!(std::fs::metadata(unpacked.join(file)).is_ok_and(|file| file.len() > 0), "{file}");
    }
    let licences = crates_in(Path::new(&archive));
    for part in ["  libp2p 0.57.1: MIT", "  tokio 1.", "  mimalloc", "Permission is hereby granted"] {
        assert!(licences.contains(part), "{part:?} is not among the licences");
    }
    // The list does not contain crates of tests, of features that the binary is built without, or procedural macros.
    for part in ["  proptest ", "  cubecl-cuda ", "  serde_derive "] {
        assert!(!licences.contains(part), "{part:?} is among the licences");
    }
}

/// A process that ends with the test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The words of the last line of a Containerfile with this instruction: a list in JSON after `key`.
fn instruction(file: &str, key: &str) -> Vec<String> {
    let line = file.lines().rfind(|line| line.starts_with(key)).unwrap_or_else(|| panic!("no {key}"));
    let list = &line[line.find('[').expect("a list")..];
    serde_json::from_str(list).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn an_image_starts_as_its_user_and_is_healthy() {
    let Some(network) = Namespaces::new(1, "an image") else { return };
    if !can_install() {
        return missing(Means::Packages, "an image");
    }
    let sandbox = Sandbox::new();
    let image = PathBuf::from(script("image.sh", &sandbox.path("image")));
    let file = std::fs::read_to_string(image.join("Containerfile")).expect("a Containerfile");
    let value = |key: &str| {
        let line = file.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key}")).trim().to_owned()
    };
    // As the two COPYs make it: the root file system, then the user's folder.
    assert_eq!(file.lines().filter(|line| line.starts_with("COPY")).count(), 2, "{file}");
    assert!(!image.join("rootfs/data").exists(), "the second COPY would leave its owner as it is");
    std::fs::rename(image.join("data"), image.join("rootfs/data")).expect("one file system");
    // As a container is started: in its file system, as its user, with its own environment and network.
    let run = |words: &[String]| {
        let enter = r#"mount --rbind /proc "$1/proc" && user=$2 && root=$1 && variables=$3 && shift 3 &&
            exec env -i $variables "$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v chroot)" --userspec="$user" "$root" "$@""#;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.names[0], "unshare", "--mount", "sh", "-c", enter, "sh"]);
        command.arg(image.join("rootfs")).args([value("USER"), value("ENV")]).args(words);
        command
    };
    let start = [instruction(&file, "ENTRYPOINT"), instruction(&file, "CMD")].concat();
    let node = run(&start).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    let mut node = Started(node);
    let mut line = String::new();
    BufReader::new(node.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    if !line.starts_with("local/0 serves") {
        let _ = node.0.kill();
        let mut stderr = BufReader::new(node.0.stderr.take().expect("piped"));
        panic!("{line}{}", std::io::read_to_string(&mut stderr).unwrap_or_default());
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.0.id())).expect("it runs");
    assert!(status.lines().any(|line| line.starts_with("Uid:\t10001\t10001")), "{status}");

    let checked = run(&instruction(&file, "HEALTHCHECK")).output().expect("a process");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let words = ["/usr/bin/meshtf", "doctor", "--quick", "--json", "--expect", "local/0"].map(str::to_owned);
    let report: Value = serde_json::from_slice(&run(&words).output().expect("a process").stdout).expect("JSON");
    assert_eq!(report["ok"], true, "{report}");
    // The key and the data are in the volume, and no other folder is writable.
    assert_eq!(instruction(&file, "VOLUME"), ["/data"]);
    assert!(image.join("rootfs/data/keys/meshtf.key").exists());
}

#[test]
fn the_crate_is_source_without_test_data() {
    let list = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO")).args(arguments).current_dir(project()).output().expect("cargo runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("names")
    };
    let files = list(&["package", "--list", "--offline", "--allow-dirty"]);
    let files: Vec<&str> = files.lines().collect();
    for file in ["src/main.rs", "src/door/web/page.html", "src/cli/tf/sitecustomize.py", "README.md", "LICENSE-MIT"] {
        assert!(files.contains(&file), "{file} is not in the crate");
    }
    assert!(!files.iter().any(|file| file.starts_with("tests/") || file.starts_with("benches/")));
    let bytes: u64 =
        files.iter().filter_map(|file| std::fs::metadata(project().join(file)).ok()).map(|file| file.len()).sum();
    assert!(bytes < 10 << 20, "{bytes} bytes");
}
