//! Datasets of the records of files.

use meshtf_kernels::files::{Compression, Folder, Format, Records};
use meshtf_loops::turn;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Elements, Parts, Pull, UNKNOWN};

/// The records of some files, one file after the other. If `offsets` is not empty, the bytes of each file before the offset at
/// its index are left out.
pub(crate) fn records(names: Vec<Vec<u8>>, offsets: Vec<u64>, format: Format, folder: Folder) -> Parts {
    let files = Files { names, offsets, format, folder };
    Parts::new(UNKNOWN, move |_| Ok(Box::new(Following { files: files.clone(), at: 0, open: None })))
}

#[derive(Clone)]
struct Files {
    names: Vec<Vec<u8>>,
    offsets: Vec<u64>,
    format: Format,
    folder: Folder,
}

struct Following {
    files: Files,
    /// The index of the file that is read, or of the next one.
    at: usize,
    open: Option<Records>,
}

impl Elements for Following {
    fn next(&mut self, _: &Pull) -> Result<Option<super::Element>> {
        while let Some(name) = self.files.names.get(self.at) {
            turn::look();
            // After a failure, the next file follows.
            let mut records = match self.open.take() {
                Some(records) => records,
                None => self.files.open(self.at).inspect_err(|_| self.at += 1)?,
            };
            match records.next().inspect_err(|_| self.at += 1)? {
                Some((_, record)) => {
                    self.open = Some(records);
                    return Ok(Some(vec![Tensor::scalar(record).into()]));
                }
                None => self.at += 1,
            }
            check_end(&self.files.format, name, &records)?;
        }
        Ok(None)
    }
}

impl Files {
    fn open(&self, at: usize) -> Result<Records> {
        let name = &self.names[at];
        if let Format::Fixed { header, record, footer, compression: Compression::None, .. } = self.format {
            let length = self.folder.open(name)?.metadata().map_or(0, |file| file.len());
            let body = length as i64 - (header as i64).saturating_add(footer as i64);
            if body < 0 || body % record as i64 != 0 {
                return Err(Failure::invalid(no_multiple(name, header, footer, body, record)));
            }
        }
        let mut records = Records::open(&self.format, &self.folder, name.clone())?;
        if let Some(&offset) = self.offsets.get(at) {
            records.skip_to(offset)?;
        }
        Ok(records)
    }
}

/// Refuses records of one length whose last one is truncated.
fn check_end(format: &Format, name: &[u8], records: &Records) -> Result<()> {
    match *format {
        Format::Fixed { header, record, footer, .. } if records.body() % record as i64 != 0 || records.body() < 0 => {
            Err(Failure::new(Code::DataLoss, no_multiple(name, header, footer, records.body(), record)))
        }
        _ => Ok(()),
    }
}

fn no_multiple(name: &[u8], header: usize, footer: usize, body: i64, record: usize) -> String {
    let name = String::from_utf8_lossy(name);
    format!(
        "Excluding the header ({header} bytes) and footer ({footer} bytes), input file \"{name}\" has body length {body} bytes, \
         which is not an exact multiple of the record length ({record} bytes)."
    )
}
