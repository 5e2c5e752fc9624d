//! The data folder: the only folder below which checkpoints may be stored, chosen by the node's owner.

use std::io;
use std::path::{Component, Path, PathBuf};

use meshtf_tensor::failure::{Code, Failure, Result};

/// The folder below which graphs may read and write files. The name `model/a` in a graph refers to a file below it; an
/// absolute name must already lead into it.
#[derive(Clone, Debug)]
pub struct DataDir {
    /// Absolute, with links resolved.
    root: PathBuf,
    /// The folder to which names are relative, if that is not the root.
    base: Option<PathBuf>,
    /// Whether `/a` means `a` below the root, not `/a` of the machine.
    is_whole_world: bool,
}

impl DataDir {
    /// Uses this folder, and makes it if it does not exist.
    ///
    /// # Errors
    /// The system's, if it cannot be made or is not a folder.
    pub fn new(root: impl AsRef<Path>) -> io::Result<DataDir> {
        std::fs::create_dir_all(&root)?;
        let root = root.as_ref().canonicalize()?;
        if root.is_dir() {
            Ok(DataDir { root, base: None, is_whole_world: false })
        } else {
            Err(io::Error::from(io::ErrorKind::NotADirectory))
        }
    }

    /// The same folder for graphs that name files of another machine: absolute names are below it, too.
    #[doc(hidden)]
    #[must_use]
    pub fn as_whole_world(self) -> DataDir {
        DataDir { is_whole_world: true, ..self }
    }

    /// The same folder for graphs whose names are relative to `base`. It need not be below the folder, but such names must
    /// lead into the folder nevertheless.
    #[doc(hidden)]
    #[must_use]
    pub fn from_base(self, base: PathBuf) -> DataDir {
        DataDir { base: Some(base), ..self }
    }

    /// The folder below which files may be accessed.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file that a graph names; it need not exist yet.
    ///
    /// # Errors
    /// InvalidArgument for an empty name; PermissionDenied if it leads out of the folder, by `..`, by being
    /// absolute, over a link, or by being relative to a folder that is not below it.
    #[doc(hidden)]
    pub fn resolve(&self, name: &[u8]) -> Result<PathBuf> {
        let name = std::str::from_utf8(name).map_err(|_| Failure::invalid("a file name is not UTF-8"))?;
        if name.is_empty() || name.contains('\0') {
            return Err(Failure::invalid(format!("{name:?} is not a valid file name")));
        }
        let denied = |why: &str| {
            let root = self.root.display();
            Failure::new(Code::PermissionDenied, format!("{name} {why}; graphs may only access files below {root}"))
        };
        let named = Path::new(if self.is_whole_world { name.trim_start_matches('/') } else { name });
        if named.components().any(|part| matches!(part, Component::ParentDir | Component::Prefix(_))) {
            return Err(denied("contains \"..\""));
        }
        // Joining an absolute path gives that path.
        let base = self.base.as_ref().unwrap_or(&self.root);
        let path: PathBuf = base.join(named).components().collect();
        if named.is_relative() && !path.starts_with(&self.root) {
            let (root, base) = (self.root.display(), base.display());
            let why = format!(
                "{name} is a relative name: it would lie below {base}, where this node was started, but graphs may \
 only access files below {root}. Use an absolute name, {root}/{}, in a folder that the program shares \
 with the node; the node's `--data` sets that folder",
                named.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>().display()
            );
            return Err(Failure::new(Code::PermissionDenied, why));
        }
        // A path that does not exist yet cannot be a link, so the nearest existing parent decides where the path leads.
        let mut existing = path.as_path();
        while existing.symlink_metadata().is_err() {
            existing = existing.parent().ok_or_else(|| denied("has no parent folder"))?;
        }
        let real = existing.canonicalize().map_err(|_| denied("goes through a broken link"))?;
        if !real.starts_with(&self.root) {
            return Err(denied("leads out of the data folder"));
        }
        let rest = path.strip_prefix(existing).map_err(|_| denied("has no parent folder"))?;
        Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
    }

    /// The prefix of the names of a checkpoint's files: one that ends in `/` is a folder, which contains them.
    ///
    /// # Errors
    /// As [`DataDir::resolve`].
    pub(super) fn resolve_prefix(&self, prefix: &[u8]) -> Result<PathBuf> {
        let mut path = self.resolve(prefix)?.into_os_string();
        if prefix.ends_with(b"/") {
            path.push("/");
        }
        Ok(path.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_folder() {
        let outside = temp_dir::TempDir::new().unwrap();
        let folder = temp_dir::TempDir::new().unwrap();
        let data = DataDir::new(folder.path()).unwrap();
        std::fs::create_dir(folder.path().join("model")).unwrap();
        let check = |name: &str, want: Result<&str, Code>| {
            let got = data.resolve(name.as_bytes());
            let want = want.map(|path| data.root().join(path));
            assert_eq!(got.map_err(|failure| failure.code), want, "{name}");
        };
        check("a", Ok("a"));
        check("model/step-1", Ok("model/step-1"));
        check("new/deeper/./step-1", Ok("new/deeper/step-1"));
        check(data.root().join("model/a").to_str().unwrap(), Ok("model/a"));
        check("", Err(Code::InvalidArgument));
        check("..", Err(Code::PermissionDenied));
        check("model/../../a", Err(Code::PermissionDenied));
        check("/etc/passwd", Err(Code::PermissionDenied));
        check(outside.path().join("a").to_str().unwrap(), Err(Code::PermissionDenied));
        // From a folder below the data folder, and from another.
        let inside = data.clone().from_base(data.root().join("model"));
        assert_eq!(inside.resolve(b"./a").unwrap(), data.root().join("model/a"));
        let elsewhere = data.clone().from_base(outside.path().to_owned());
        let refused = elsewhere.resolve(b"./m/a").unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied);
        let instead = data.root().join("m/a").display().to_string();
        assert!(refused.message.contains(&instead), "{refused}");
        assert_eq!(elsewhere.resolve(instead.as_bytes()).unwrap(), data.root().join("m/a"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).unwrap();
            std::os::unix::fs::symlink(outside.path().join("gone"), folder.path().join("broken")).unwrap();
            std::os::unix::fs::symlink("model", folder.path().join("inside")).unwrap();
            check("link/a", Err(Code::PermissionDenied));
            check("broken", Err(Code::PermissionDenied));
            check("inside/a", Ok("model/a"));
        }
    }
}
