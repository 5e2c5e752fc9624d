//! The files of `--out` of `run` and `submit`: one for all fetches, by its extension, or a folder with a file for each.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use meshtf_checkpoint::write_whole;
use meshtf_tensor::{DType, Tensor, npy};
use meshtf_train::data::write_npz;

use super::Trouble;
use super::inputs::StepRequest;
use super::output::{self, check_is_no_input, check_out, check_save, files_of, make_folder_of};
use super::predictions::{Form, save_records};
use super::ranked::Ranked;

/// The forms of a file, by its extension.
const FORMS: [(&str, File); 5] = [
    ("npy", File::Array),
    ("npz", File::Arrays),
    ("csv", File::Records(Form::Csv)),
    ("json", File::Json),
    ("jsonl", File::Records(Form::JsonLines)),
];

/// One file for all fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    /// The only fetch, as it is.
    Array,
    /// Each fetch by its name.
    Arrays,
    /// Each fetch by its name, with dtype and shape.
    Json,
    /// A record for each example.
    Records(Form),
}

/// The destination of the fetches of the last step.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    path: PathBuf,
    /// `None` for a folder.
    file: Option<File>,
}

impl Destination {
    /// The destination at a path.
    ///
    /// # Errors
    /// Bad input for an extension that no form has: it may be a slip. A folder exists, has none, or is named with `/` at its end.
    pub fn of(path: &Path) -> Result<Destination, Trouble> {
        let folder = Destination { path: path.to_owned(), file: None };
        let is_named_folder = path.to_string_lossy().ends_with('/') || path.is_dir();
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        // A number after a dot belongs to the name of a run.
        let Some(ending) = ending.filter(|ending| !is_named_folder && ending.contains(char::is_alphabetic)) else {
            return Ok(folder);
        };
        match FORMS.iter().find(|(own, _)| *own == ending) {
            Some((_, file)) => Ok(Destination { file: Some(*file), ..folder }),
            None => Err(Trouble::input(format!(
                "--out {}: unknown extension .{ending}; expected {}, or a folder, with / at its end",
                path.display(),
                Destination::extensions()
            ))),
        }
    }

    /// The extensions that are known.
    fn extensions() -> String {
        FORMS.map(|(ending, _)| format!(".{ending}")).join(", ")
    }

    /// Whether all fetches are in one file.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Refuses a destination that could not be written, before anything runs for it.
    pub fn check(&self, job: &StepRequest, ranks: bool) -> Result<(), Trouble> {
        let refuse = |why: String| Err(Trouble::input(format!("--out {}: {why}", self.path.display())));
        if ranks && !matches!(self.file, Some(File::Json | File::Records(_))) {
            return refuse("the classes of --top are written as .csv, .json or .jsonl".to_owned());
        }
        let types = job.fetch_types()?;
        let Some(file) = self.file else {
            check_save(&self.path, &types)?;
            let files = files_of(&self.path, job);
            return files.iter().try_for_each(|file| check_is_no_input(file, job.inputs()));
        };
        check_is_no_input(&self.path, job.inputs())?;
        check_out(&self.path)?;
        if types.is_empty() {
            return refuse("nothing is fetched, so there is nothing to write".to_owned());
        }
        if let (File::Array, [_, _, ..]) = (file, &types[..]) {
            return refuse(format!(
                "{} tensors are fetched, and a .npy file holds one: choose it with --fetch, or write .npz",
                types.len()
            ));
        }
        let is_twice = |(at, name): (usize, &String)| job.names[..at].contains(name);
        if matches!(file, File::Arrays | File::Json)
            && let Some((_, fetch)) = job.names.iter().enumerate().find(|own| is_twice(*own))
        {
            return refuse(format!("{fetch} is fetched twice, and such a file has each name once"));
        }
        if matches!(file, File::Array | File::Arrays) {
            for (fetch, dtype, is_proto) in types {
                if is_proto {
                    return refuse(format!(
                        "NumPy has no dtype for {fetch}: write a folder, where it is a .pb file, or .json"
                    ));
                }
                if dtype == DType::String {
                    return refuse(format!(
                        "{fetch} is a string tensor, which is not written as an array: write .json or .csv"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Writes the values to one file, or to a folder; each file whole or not at all. Returns the files of a folder.
    pub async fn write(&self, job: &StepRequest, values: &[Tensor]) -> Result<Vec<PathBuf>, Trouble> {
        let failed = |failure: meshtf_tensor::failure::Failure| self.cannot(&failure.message);
        let bytes = match (self.file, values) {
            (None, _) => return output::save(&self.path, job, values),
            (Some(File::Records(form)), _) => {
                return save_records(&self.path, form, job, values).await.map(|()| Vec::new());
            }
            (Some(File::Array), [value]) => match job.is_trained() {
                // Probabilities of classes, and labels in their own unit.
                true => return save_records(&self.path, Form::Npy, job, values).await.map(|()| Vec::new()),
                false => npy::write(value).map_err(failed)?,
            },
            (Some(File::Array | File::Arrays), _) => {
                let named: Vec<(String, Tensor)> = job.names.iter().cloned().zip(values.iter().cloned()).collect();
                let mut bytes = Cursor::new(Vec::new());
                write_npz(&mut bytes, &named).map_err(failed)?;
                bytes.into_inner()
            }
            (Some(File::Json), _) => format!("{}\n", output::values_json(&job.names, values)).into_bytes(),
        };
        self.write_bytes(&bytes)?;
        Ok(Vec::new())
    }

    /// Writes the best classes to the file.
    pub fn write_ranked(&self, ranked: &Ranked) -> Result<(), Trouble> {
        self.write_bytes(&match self.file {
            Some(File::Json) => format!("{}\n", ranked.json()).into_bytes(),
            Some(File::Records(Form::JsonLines)) => ranked.json_lines(),
            _ => ranked.csv(),
        })
    }

    fn write_bytes(&self, bytes: &[u8]) -> Result<(), Trouble> {
        let written = make_folder_of(&self.path).and_then(|()| write_whole(&self.path, bytes));
        written.map(|_| ()).map_err(|error| self.cannot(&error))
    }

    fn cannot(&self, why: &dyn std::fmt::Display) -> Trouble {
        Trouble::input(format!("--out {}: {why}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;

    #[test]
    fn the_extension_says_the_form_and_an_unknown_one_is_refused() {
        let folder = TempDir::new().unwrap();
        let of = |name: &str| Destination::of(&folder.child(name)).map(|own| own.file);
        assert_eq!(of("y.NPZ").unwrap(), Some(File::Arrays));
        assert_eq!(of("y.json").unwrap(), Some(File::Json));
        for name in ["out", "run.1", "out.d/", "v2.10"] {
            assert_eq!(of(name).unwrap(), None, "{name}");
        }
        let why = of("y.h5").unwrap_err().to_string();
        assert!(why.contains("unknown extension .h5; expected .npy, .npz, .csv, .json, .jsonl, or a folder"), "{why}");
        std::fs::create_dir(folder.child("y.h5")).unwrap();
        assert_eq!(of("y.h5").unwrap(), None, "it exists");
    }
}
