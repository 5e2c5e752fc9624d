//! The ops of readers, which read the files that a queue names.

use meshtf_kernels::KernelNode;
use meshtf_kernels::files::{Compression, Format};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::resource::{Reader, Wanted};
use super::super::token::Token;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("IdentityReaderV2", |node, site| handle(node, site, Format::Name));
    ops.insert("WholeFileReaderV2", |node, site| handle(node, site, Format::Whole));
    ops.insert("TextLineReaderV2", |node, site| {
        // A negative number means none.
        let header = usize::try_from(node.attrs.int("skip_header_lines")?).unwrap_or(0);
        handle(node, site, Format::Lines { header, compression: Compression::None })
    });
    ops.insert("TFRecordReaderV2", |node, site| {
        handle(node, site, Format::TfRecord(compression(node, "compression_type")?))
    });
    ops.insert("FixedLengthRecordReaderV2", |node, site| handle(node, site, fixed(node)?));
    ops.insert("ReaderReadV2", |_, _| read(|_| Ok(Wanted::One)));
    ops.insert("ReaderReadUpToV2", |_, _| {
        read(|inputs| {
            let wanted = inputs.host(2)?.to_i64()?;
            let most = usize::try_from(wanted).ok().filter(|&most| most > 0);
            most.map(Wanted::UpTo)
                .ok_or_else(|| Failure::invalid(format!("num_records must be positive, got {wanted}")))
        })
    });
    ops.insert_call("ReaderNumRecordsProducedV2", |mut inputs, _| {
        let (produced, _) = inputs.reader(0)?.counts();
        Ok(one(Tensor::scalar(produced)))
    });
    ops.insert_call("ReaderNumWorkUnitsCompletedV2", |mut inputs, _| {
        let (_, finished) = inputs.reader(0)?.counts();
        Ok(one(Tensor::scalar(finished)))
    });
    ops.insert_call("ReaderSerializeStateV2", |mut inputs, _| Ok(one(Tensor::scalar(inputs.reader(0)?.serialize()?))));
    ops.insert_call("ReaderRestoreStateV2", |mut inputs, _| {
        let (reader, state) = (inputs.reader(0)?, inputs.host(1)?);
        if state.rank() != 0 {
            return Err(Failure::invalid(format!("Reader state must be scalar, but had shape: {}", state.shape())));
        }
        reader.restore(&state.item::<Vec<u8>>()?)?;
        Ok(nothing())
    });
    ops.insert_call("ReaderResetV2", |mut inputs, _| {
        inputs.reader(0)?.reset();
        Ok(nothing())
    });
}

/// An op that may have to wait for a file to be named.
fn read(mut wanted: impl FnMut(&mut StateInputs) -> Result<Wanted> + Send + 'static) -> Result<StateOp> {
    Ok(Box::new(move |tokens, context| -> Result<Outcome> {
        let mut inputs = StateInputs(tokens);
        let (reader, queue) = (inputs.reader(0)?, inputs.queue(1)?);
        let wanted = wanted(&mut inputs)?;
        reader.read(context.waiter(), queue, wanted)?;
        Ok(Outcome::Waits(reader))
    }))
}

/// The format of records of one length.
fn fixed(node: &KernelNode) -> Result<Format> {
    let size = |name: &str, least: i64| {
        let size = node.attrs.int(name)?;
        let fits = usize::try_from(size).ok().filter(|_| size >= least);
        let sign = if least > 0 { "> 0" } else { ">= 0" };
        fits.ok_or_else(|| Failure::invalid(format!("{name} must be {sign} not {size}")))
    };
    let (record, hop) = (size("record_bytes", 1)?, size("hop_bytes", 0)?);
    let (header, footer) = (size("header_bytes", 0)?, size("footer_bytes", 0)?);
    let hop = if hop == 0 { record } else { hop };
    Ok(Format::Fixed { header, record, footer, hop, compression: compression(node, "encoding")? })
}

/// The compression that an attribute names, if the node has it.
fn compression(node: &KernelNode, attr: &str) -> Result<Compression> {
    match node.attrs.get(attr) {
        None => Ok(Compression::None),
        Some(_) => Compression::named(node.attrs.str(attr)?),
    }
}

fn handle(node: &KernelNode, site: &Site, format: Format) -> Result<StateOp> {
    let folder = site.folder(node);
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
