//! The ops of readers, which read the files that a queue names.

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_kernels::files::{Compression, Folder, Format};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::resource::{Reader, Wanted};
use super::super::token::Token;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, nothing, one, simple};

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let count =
        |f: fn((i64, i64)) -> i64| simple(move |mut inputs, _| Ok(one(Tensor::scalar(f(inputs.reader(0)?.counts())))));
    match node.op {
        "IdentityReaderV2"
        | "WholeFileReaderV2"
        | "TextLineReaderV2"
        | "TFRecordReaderV2"
        | "FixedLengthRecordReaderV2" => handle(node, site),
        "ReaderReadV2" => read(|_| Ok(Wanted::One)),
        "ReaderReadUpToV2" => read(|inputs| {
            let wanted = inputs.host(2)?.to_i64()?;
            let most = usize::try_from(wanted).ok().filter(|&most| most > 0);
            most.map(Wanted::UpTo)
                .ok_or_else(|| Failure::invalid(format!("num_records must be positive, got {wanted}")))
        }),
        "ReaderNumRecordsProducedV2" => count(|(produced, _)| produced),
        "ReaderNumWorkUnitsCompletedV2" => count(|(_, finished)| finished),
        "ReaderSerializeStateV2" => simple(|mut inputs, _| Ok(one(Tensor::scalar(inputs.reader(0)?.serialize()?)))),
        "ReaderRestoreStateV2" => simple(|mut inputs, _| {
            let (reader, state) = (inputs.reader(0)?, inputs.host(1)?);
            if state.rank() != 0 {
                return Err(Failure::invalid(format!("Reader state must be scalar, but had shape: {}", state.shape())));
            }
            reader.restore(&state.item::<Vec<u8>>()?)?;
            Ok(nothing())
        }),
        "ReaderResetV2" => simple(|mut inputs, _| {
            inputs.reader(0)?.reset();
            Ok(nothing())
        }),
        _ => Ok(None),
    }
}

/// An op that may have to wait for a file to be named.
fn read(mut wanted: impl FnMut(&mut StateInputs) -> Result<Wanted> + Send + 'static) -> Result<Option<StateOp>> {
    Ok(Some(Box::new(move |tokens, context| -> Result<Outcome> {
        let mut inputs = StateInputs(tokens);
        let (reader, queue) = (inputs.reader(0)?, inputs.queue(1)?);
        let wanted = wanted(&mut inputs)?;
        reader.read(context.waiter(), queue, wanted)?;
        Ok(Outcome::Waits(reader))
    })))
}

fn handle(node: &KernelNode, site: &Site) -> Result<Option<StateOp>> {
    let size = |name: &str, least: i64| {
        let size = node.attrs.int(name)?;
        let fits = usize::try_from(size).ok().filter(|_| size >= least);
        let sign = if least > 0 { "> 0" } else { ">= 0" };
        fits.ok_or_else(|| Failure::invalid(format!("{name} must be {sign} not {size}")))
    };
    let compression = |name: &str| match node.attrs.get(name) {
        None => Ok(Compression::None),
        Some(_) => Compression::named(node.attrs.str(name)?),
    };
    let format = match node.op {
        "IdentityReaderV2" => Format::Name,
        "WholeFileReaderV2" => Format::Whole,
        // A negative number means none.
        "TextLineReaderV2" => {
            let header = usize::try_from(node.attrs.int("skip_header_lines")?).unwrap_or(0);
            Format::Lines { header, compression: Compression::None }
        }
        "TFRecordReaderV2" => Format::TfRecord(compression("compression_type")?),
        _ => {
            let (record, hop) = (size("record_bytes", 1)?, size("hop_bytes", 0)?);
            let (header, footer) = (size("header_bytes", 0)?, size("footer_bytes", 0)?);
            let hop = if hop == 0 { record } else { hop };
            Format::Fixed { header, record, footer, hop, compression: compression("encoding")? }
        }
    };
    let folder = Folder::of(node.op, node.attrs, site.resources.data());
    let mut named = Named::new_own(node, site)?;
    simple(move |_, _| {
        let reader = named.find(|name| Reader::new(name.to_owned(), format.clone(), folder.clone()))?;
        if *reader.format() != format {
            let why = format!("reader '{}' is shared and reads other records than this node says", reader.name());
            return Err(Failure::invalid(why));
        }
        Ok(one(Token::Resource(reader)))
    })
}
