//! Token columns to output tensors: rows padded on the right to one width.

use crate::encoder::{Columns, Pads};
use crate::settings::{Integer, Kind, Output};

/// Most bytes of the outputs of one request; more would fill the memory of the server.
pub const MOST_BYTES: usize = 256 << 20;

/// The rows of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row in the columns.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// First token in the columns.
    pub token: usize,
}

/// Returns the shape of an output for `rows` rows of `width` tokens.
pub fn shape(kind: Kind, rows: usize, width: usize) -> ([i64; 3], usize) {
    let [rows, width] = [rows, width].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    match kind {
        Kind::Lengths => ([rows, 1, 0], 2),
        Kind::Offsets => ([rows, width, 2], 3),
        _ => ([rows, width, 0], 2),
    }
}

/// Returns the bytes of an output for `rows` rows of `width` tokens; `None` if these overflow.
pub fn size(output: &Output, rows: usize, width: usize) -> Option<usize> {
    let elements = match output.kind {
        Kind::Lengths => Some(rows),
        Kind::Offsets => rows.checked_mul(width)?.checked_mul(2),
        _ => rows.checked_mul(width),
    };
    elements?.checked_mul(output.integer.size())
}

/// Writes one output of a request into `buffer`, which has the output's [`size`].
pub fn write(
    output: &Output,
    columns: &Columns,
    span: Span,
    width: usize,
    pads: Pads,
    buffer: &mut [u8],
) {
    match output.integer {
        Integer::Int32 => fill(output.kind, columns, span, width, pads, &mut Words32(buffer)),
        Integer::Int64 => fill(output.kind, columns, span, width, pads, &mut Words64(buffer)),
    }
}

/// A buffer of integers of one size, written from its front.
trait Sink {
    fn push(&mut self, value: i64);
}

struct Words32<'a>(&'a mut [u8]);
struct Words64<'a>(&'a mut [u8]);

impl Sink for Words32<'_> {
    #[inline]
    fn push(&mut self, value: i64) {
        let (front, rest) = std::mem::take(&mut self.0).split_at_mut(4);
        // Like numpy: the low half of what does not fit.
        front.copy_from_slice(&(value as i32).to_ne_bytes());
        self.0 = rest;
    }
}

impl Sink for Words64<'_> {
    #[inline]
    fn push(&mut self, value: i64) {
        let (front, rest) = std::mem::take(&mut self.0).split_at_mut(8);
        front.copy_from_slice(&value.to_ne_bytes());
        self.0 = rest;
    }
}

fn fill<S: Sink>(
    kind: Kind,
    columns: &Columns,
    span: Span,
    width: usize,
    pads: Pads,
    sink: &mut S,
) {
    let lengths = &columns.lengths[span.row..span.row + span.rows];
    if kind == Kind::Lengths {
        lengths.iter().for_each(|length| sink.push(*length as i64));
        return;
    }
    let mut token = span.token;
    for length in lengths {
        let tokens = token..token + length;
        token = tokens.end;
        let pad = match kind {
            Kind::InputIds => {
                columns.ids[tokens].iter().for_each(|value| sink.push(i64::from(*value)));
                i64::from(pads.id)
            }
            Kind::TokenTypeIds => {
                columns.types[tokens].iter().for_each(|value| sink.push(i64::from(*value)));
                i64::from(pads.kind)
            }
            Kind::SpecialTokensMask => {
                columns.special[tokens].iter().for_each(|value| sink.push(i64::from(*value)));
                1
            }
            Kind::Offsets => {
                for (begin, end) in &columns.offsets[tokens] {
                    sink.push(*begin as i64);
                    sink.push(*end as i64);
                }
                0
            }
            Kind::AttentionMask | Kind::Lengths => {
                tokens.for_each(|_| sink.push(1));
                0
            }
        };
        let each = if kind == Kind::Offsets { 2 } else { 1 };
        (0..(width - length) * each).for_each(|_| sink.push(pad));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(kind: Kind, integer: Integer) -> Vec<u8> {
        let columns = Columns {
            lengths: vec![1, 2, 1],
            ids: vec![9, 7, 8, 6],
            types: vec![0, 1, 1, 0],
            special: vec![0, 0, 1, 0],
            offsets: vec![(0, 9), (0, 1), (1, 2), (3, 4)],
            tokens: 4,
        };
        let output = Output { name: "x".into(), kind, integer };
        let span = Span { row: 1, rows: 2, token: 1 };
        let mut buffer = vec![0xAA; size(&output, 2, 3).unwrap()];
        write(&output, &columns, span, 3, Pads { id: 5, kind: 4 }, &mut buffer);
        buffer
    }

    fn values(kind: Kind) -> Vec<i64> {
        let bytes = written(kind, Integer::Int64);
        bytes.chunks_exact(8).map(|part| i64::from_ne_bytes(part.try_into().unwrap())).collect()
    }

    #[test]
    fn every_kind_is_padded_with_its_own_value() {
        assert_eq!(values(Kind::InputIds), [7, 8, 5, 6, 5, 5]);
        assert_eq!(values(Kind::AttentionMask), [1, 1, 0, 1, 0, 0]);
        assert_eq!(values(Kind::TokenTypeIds), [1, 1, 4, 0, 4, 4]);
        assert_eq!(values(Kind::SpecialTokensMask), [0, 1, 1, 0, 1, 1]);
        assert_eq!(values(Kind::Offsets), [0, 1, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0]);
        assert_eq!(values(Kind::Lengths), [2, 1]);
        assert_eq!(written(Kind::Lengths, Integer::Int32), [2, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn shapes_and_sizes_overflow_nothing() {
        assert_eq!(shape(Kind::Offsets, 2, 3), ([2, 3, 2], 3));
        let output = Output { name: "x".into(), kind: Kind::Offsets, integer: Integer::Int64 };
        assert_eq!(size(&output, usize::MAX, 2), None);
        assert_eq!(size(&output, 2, 3), Some(96));
    }
}
