//! Names of devices, or parts of names, in TensorFlow's form.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// The parts of a name; `None` matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub job: Option<String>,
    pub replica: Option<u32>,
    pub task: Option<u32>,
    kind: Option<String>,
    index: Option<u32>,
}

impl Name {
    /// Whether each part of this name equals that of the other.
    pub fn fits(&self, other: &Name) -> bool {
        fn part<T: PartialEq>(asked: &Option<T>, has: &Option<T>) -> bool {
            asked.is_none() || asked == has
        }
        // A name without a replica means replica 0.
        let replica = self.replica.is_none_or(|asked| asked == other.replica.unwrap_or(0));
        replica
            && part(&self.job, &other.job)
            && part(&self.task, &other.task)
            && part(&self.kind, &other.kind)
            && part(&self.index, &other.index)
    }

    pub fn is_cpu(&self) -> bool {
        self.kind.as_deref() == Some("CPU")
    }
}

impl FromStr for Name {
    type Err = Error;

    /// `/job:worker/replica:0/task:1/device:GPU:0`, any part of it, and the old `/gpu:0` and `/cpu:0`. Empty means any device.
    fn from_str(text: &str) -> Result<Name, Error> {
        let wrong = || Error::Name { asked: text.to_owned() };
        let number = |digits: &str| digits.parse().map_err(|_| wrong());
        let mut name = Name::default();
        if text.is_empty() {
            return Ok(name);
        }
        for part in text.strip_prefix('/').ok_or_else(wrong)?.split('/') {
            let (key, value) = part.split_once(':').ok_or_else(wrong)?;
            let twice = match key.to_ascii_lowercase().as_str() {
                "job" if !value.is_empty() => name.job.replace(value.to_owned()).is_some(),
                "replica" => name.replica.replace(number(value)?).is_some(),
                "task" => name.task.replace(number(value)?).is_some(),
                "device" => {
                    let (kind, index) = value.split_once(':').unwrap_or((value, "*"));
                    if index != "*" {
                        name.index = Some(number(index)?);
                    }
                    name.kind.replace(kind.to_ascii_uppercase()).is_some()
                }
                kind @ ("cpu" | "gpu") => {
                    name.index = Some(number(value)?);
                    name.kind.replace(kind.to_ascii_uppercase()).is_some()
                }
                _ => return Err(wrong()),
            };
            if twice {
                return Err(wrong());
            }
        }
        Ok(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        if let Some(kind) = &self.kind {
            write!(f, "/device:{kind}")?;
        }
        match self.index {
            Some(index) => write!(f, ":{index}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_fits_the_whole() {
        let whole: Name = "/job:worker/replica:0/task:1/device:GPU:0".parse().unwrap();
        for part in
            ["", "/job:worker", "/task:1", "/gpu:0", "/device:gpu:0", "/device:GPU", "/job:worker/task:1/device:GPU:*"]
        {
            assert!(part.parse::<Name>().unwrap().fits(&whole), "{part}");
        }
        for part in ["/job:ps", "/task:0", "/cpu:0", "/device:GPU:1", "/replica:1"] {
            assert!(!part.parse::<Name>().unwrap().fits(&whole), "{part}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["worker", "/", "/job", "/job:", "/task:x", "/tpu:0", "/task:0/task:1", "/gpu:0/cpu:0", "/gpu:-1"] {
            assert_eq!(text.parse::<Name>(), Err(Error::Name { asked: text.to_owned() }));
        }
    }

    #[test]
    fn a_name_is_written_as_it_was_read() {
        for text in ["/job:worker/task:0/device:CPU:0", "/job:ps/replica:0/task:3/device:GPU:1", "/task:2", ""] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
    }
}
