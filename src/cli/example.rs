//! `meshtf example`: the examples that are in the binary.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser};
use image::{ExtendedColorType, ImageFormat};
use meshtf_tensor::npy;

use super::paint::mention;
use super::{Exit, Outcome, Trouble, output};
use Files::{Images, Kept};

/// List the examples, or write one to a folder
///
/// Without an argument, it lists them. With the name of one, it writes its files, and prints the commands that run it. A file
/// that exists already is never overwritten.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf example
  meshtf example graph             graph.json, in this folder
  meshtf example digits -o digits  the model and its images, in digits/")]
pub struct Args {
    /// Name of an example
    #[arg(value_parser = names())]
    name: Option<String>,
    /// Folder to write to, created if it does not exist
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// An example.
struct Example {
    name: &'static str,
    about: &'static str,
    files: Files,
    /// The commands that run it, in order. In an argument, `@` is the folder of its files.
    commands: &'static [&'static [&'static str]],
}

/// The files of an example.
enum Files {
    /// Their names and contents.
    Kept(&'static [(&'static str, &'static [u8])]),
    /// The handwritten digits as images, in a folder for each class.
    Images,
}

macro_rules! file {
    ($path:literal, $name:literal) => {
        ($name, include_bytes!(concat!("../../examples/", $path, $name)))
    };
}

const EXAMPLES: &[Example] = &[
    Example {
        name: "hello",
        about: "a greeting: strings are tensors",
        files: Kept(&[file!("", "hello.json")]),
        commands: &[&["meshtf", "run", "@hello.json"]],
    },
    Example {
        name: "graph",
        about: "a graph split over two tasks",
        files: Kept(&[file!("", "graph.json")]),
        commands: &[
            &["meshtf", "run", "@graph.json"],
            &["meshtf", "plan", "@graph.json"],
            &["meshtf", "submit", "@graph.json"],
        ],
    },
    Example {
        name: "steps",
        about: "a graph with its own training step, on two tasks",
        files: Kept(&[("steps.json", include_bytes!("../../examples/exp.json"))]),
        commands: &[
            &["meshtf", "run", "@steps.json", "--steps", "200"],
            &["meshtf", "submit", "@steps.json", "--steps", "2000", "--every", "500"],
        ],
    },
    Example {
        name: "circle",
        about: "a classifier of points in a table",
        files: Kept(&[file!("", "circle.json"), file!("", "circle.csv")]),
        commands: &[&["meshtf", "train", "@circle.json", "--local", "--checkpoint", "@circle"]],
    },
    Example {
        name: "exp",
        about: "e^x from a table, by two layers",
        files: Kept(&[file!("train/", "exp.json"), file!("train/", "exp.csv")]),
        commands: &[&["meshtf", "train", "@exp.json", "--local", "--checkpoint", "@exp"]],
    },
    Example {
        name: "digits",
        about: "handwritten digits, by two layers",
        files: Kept(&[
            file!("train/", "digits.json"),
            file!("train/", "digits.npy"),
            file!("train/", "digits_labels.npy"),
        ]),
        commands: &[&["meshtf", "train", "@digits.json", "--local", "--checkpoint", "@digits"]],
    },
    Example {
        name: "cnn",
        about: "handwritten digits, by two convolutions",
        files: Kept(&[
            file!("train/", "cnn.json"),
            file!("train/", "digits.npy"),
            file!("train/", "digits_labels.npy"),
        ]),
        commands: &[&["meshtf", "train", "@cnn.json", "--local", "--checkpoint", "@cnn"]],
    },
    Example {
        name: "images",
        about: "handwritten digits as a folder of images",
        files: Images,
        commands: &[
            &["meshtf", "new", "images", "@images", "-o", "@images.json"],
            &["meshtf", "train", "@images.json", "--local", "--checkpoint", "@images-run"],
        ],
    },
    Example {
        name: "penguins",
        about: "a table of penguins of three species",
        files: Kept(&[file!("train/", "penguins.csv")]),
        commands: &[
            &["meshtf", "new", "table", "@penguins.csv", "--label", "species", "-o", "@penguins.json"],
            &["meshtf", "train", "@penguins.json", "--local", "--checkpoint", "@penguins"],
            &["meshtf", "predict", "@penguins.json", "@penguins", "@penguins.csv", "--local"],
        ],
    },
    Example {
        name: "poem",
        about: "the characters of a poem, by an LSTM",
        files: Kept(&[file!("train/", "poem.json"), file!("train/", "poem.txt")]),
        commands: &[
            &["meshtf", "train", "@poem.json", "--local", "--checkpoint", "@poem"],
            &["meshtf", "generate", "@poem.json", "@poem", "--local"],
        ],
    },
    Example {
        name: "shakespeare",
        about: "a text: the beginning of a play",
        files: Kept(&[file!("train/", "shakespeare.txt")]),
        commands: &[
            &["meshtf", "new", "text", "@shakespeare.txt", "-o", "@shakespeare.json"],
            &["meshtf", "train", "@shakespeare.json", "--local", "--checkpoint", "@shakespeare"],
            &["meshtf", "generate", "@shakespeare.json", "@shakespeare", "--local"],
        ],
    },
    Example {
        name: "weather",
        about: "the weather of four years, day by day",
        files: Kept(&[file!("train/", "weather.csv")]),
        commands: &[
            &["meshtf", "new", "series", "@weather.csv", "--label", "temp_max", "-o", "@weather.json"],
            &["meshtf", "train", "@weather.json", "--local", "--checkpoint", "@weather"],
            &["meshtf", "predict", "@weather.json", "@weather", "@weather.csv", "--local"],
        ],
    },
];

/// The names, which completions have too.
fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(EXAMPLES.iter().map(|one| PossibleValue::new(one.name).help(one.about)))
}

pub(super) fn example(args: Args) -> Outcome {
    let Some(example) = EXAMPLES.iter().find(|one| Some(one.name) == args.name.as_deref()) else {
        for Example { name, about, .. } in EXAMPLES {
            output::line(&format!("{name:<11} {about}"))?;
        }
        mention("`meshtf example NAME` writes one to this folder, `-o DIR` to another");
        return Ok(Exit::Ok);
    };
    write(example, &args.out)?;
    for command in example.commands {
        output::line(&command_line(command, &args.out))?;
    }
    Ok(Exit::Ok)
}

/// Writes the files, or none of them if one has other contents there. A file with the same contents stays: two examples may
/// share their data.
fn write(example: &Example, folder: &Path) -> Result<(), Trouble> {
    let at = |path: &Path, error: std::io::Error| Trouble::input(format!("{}: {error}", path.display()));
    let mut missing = Vec::new();
    let files = example.files.all()?;
    for (name, contents) in &files {
        let path = folder.join(name);
        match std::fs::read(&path) {
            Ok(there) if there == **contents => {}
            Ok(_) => {
                let why = "exists with other contents; name another folder with --out";
                return Err(Trouble::input(format!("{}: {why}", path.display())));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push((path, contents)),
            Err(error) => return Err(at(&path, error)),
        }
    }
    std::fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
    let many = (missing.len() > MANY).then_some(missing.len());
    for (path, contents) in missing {
        if let Some(parent) = path.parent().filter(|parent| *parent != folder) {
            std::fs::create_dir_all(parent).map_err(|error| at(parent, error))?;
        }
        let mut file = File::create_new(&path).map_err(|error| at(&path, error))?;
        if let Err(error) = file.write_all(contents) {
            // Half a file would be taken for another one by the next try.
            let _ = std::fs::remove_file(&path);
            return Err(at(&path, error));
        }
        if many.is_none() {
            mention(format_args!("wrote {}", path.display()));
        }
    }
    if let Some(count) = many {
        mention(format_args!("wrote {count} files to {}", folder.display()));
    }
    Ok(())
}

/// A file's name, with folders, and its contents.
type NamedFile = (String, Cow<'static, [u8]>);

/// More files than this are counted in the message, not named.
const MANY: usize = 10;

impl Files {
    /// All files.
    fn all(&self) -> Result<Vec<NamedFile>, Trouble> {
        match self {
            Kept(files) => Ok(files.iter().map(|&(name, bytes)| (name.to_owned(), Cow::Borrowed(bytes))).collect()),
            Images => images().map_err(|why| Trouble::input(format!("images: {why}"))),
        }
    }
}

/// The handwritten digits of the example `digits`, as `images/CLASS/NUMBER.png`.
fn images() -> Result<Vec<NamedFile>, String> {
    let read = |bytes: &[u8]| npy::read(bytes).map_err(|failure| failure.message);
    let digits = read(include_bytes!("../../examples/train/digits.npy"))?;
    let labels = read(include_bytes!("../../examples/train/digits_labels.npy"))?;
    let &[_, height, width] = digits.dims() else { return Err("the digits are no images".to_owned()) };
    let size = |length: usize| u32::try_from(length).map_err(|error| error.to_string());
    let (pixels, labels) = (digits.slice::<u8>(), labels.slice::<u8>());
    let (pixels, labels) = (pixels.map_err(|failure| failure.message)?, labels.map_err(|failure| failure.message)?);
    let image = |(number, (pixels, label)): (usize, (&[u8], &u8))| {
        // Their elements are from 0 to 16.
        let bright: Vec<u8> = pixels.iter().map(|&pixel| pixel.saturating_mul(16)).collect();
        let mut file = Cursor::new(Vec::new());
        image::write_buffer_with_format(
            &mut file,
            &bright,
            size(width)?,
            size(height)?,
            ExtendedColorType::L8,
            ImageFormat::Png,
        )
        .map_err(|error| error.to_string())?;
        Ok((format!("images/{label}/{number:04}.png"), Cow::Owned(file.into_inner())))
    };
    pixels.chunks(height * width).zip(labels).enumerate().map(image).collect()
}

/// A command as a shell takes it.
fn command_line(words: &[&str], folder: &Path) -> String {
    let word = |word: &&str| match word.strip_prefix('@') {
        Some(name) if folder == Path::new(".") => name.to_owned(),
        Some(name) => quoted(&folder.join(name).display().to_string()),
        None => (*word).to_owned(),
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A word in quotes if a shell would change it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "/._-+,:=@%".contains(letter);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_quoted_where_a_shell_needs_it() {
        let words = ["meshtf", "run", "@a.json"];
        assert_eq!(command_line(&words, Path::new(".")), "meshtf run a.json");
        assert_eq!(command_line(&words, Path::new("b/c")), "meshtf run b/c/a.json");
        assert_eq!(command_line(&words, Path::new("b's c")), r"meshtf run 'b'\''s c/a.json'");
    }

    #[test]
    fn the_examples_take_little_of_the_binary() {
        let kept = |one: &Example| match one.files {
            Kept(files) => files.iter().map(|(_, contents)| contents.len()).sum(),
            Images => 0,
        };
        let size: usize = EXAMPLES.iter().map(kept).sum();
        assert!(size < 400_000, "{size}");
    }
}
