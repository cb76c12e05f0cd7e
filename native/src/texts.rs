//! Texts of one input tensor: a BYTES buffer checked and split into UTF-8 rows.

/// Bytes of the length in front of each element.
const PREFIX: usize = 4;
/// Most bytes of one input of a request, the default limit of Triton's HTTP server.
pub const MOST_BYTES: usize = 64 << 20;
/// Most texts of one input of a request: empty ones take 4 bytes there, but 60 in here.
const MOST_ROWS: i64 = 1 << 20;

/// One input tensor as the client sent it.
pub struct Input<'a> {
    /// Name of the tensor, for messages.
    pub name: &'a str,
    /// Shape, the batch axis included.
    pub shape: &'a [i64],
    /// Elements, each behind its length in four little-endian bytes.
    pub bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Returns the rows: one per row of the batch, or every element if the model does not batch.
    ///
    /// # Errors
    /// The message for the client: no rows, a shape that is not one text per row, lengths that do
    /// not fit the buffer, or a row that is not UTF-8.
    pub fn rows(&self, batched: bool) -> Result<Vec<&'a str>, String> {
        let name = self.name;
        let elements = self.shape.iter().try_fold(1i64, |size, axis| size.checked_mul(*axis));
        let elements = elements.unwrap_or(i64::MAX);
        if elements == 0 {
            return Err(format!("{name} has no rows; send at least one text"));
        }
        if batched && self.shape.first() != Some(&elements) {
            return Err(format!(
                "{name} has shape {:?}, expected [rows, 1], one text per row",
                self.shape
            ));
        }
        if self.bytes.len() > MOST_BYTES {
            return Err(format!(
                "{name} has {} bytes, more than the {MOST_BYTES} allowed; send fewer or shorter texts",
                self.bytes.len()
            ));
        }
        if elements > MOST_ROWS {
            return Err(format!(
                "{name} has {elements} rows, more than the {MOST_ROWS} allowed; send fewer texts"
            ));
        }
        let elements = usize::try_from(elements).unwrap_or(usize::MAX);
        // Every element takes at least its length, whatever the shape claims.
        let mut rows = Vec::with_capacity(elements.min(self.bytes.len() / PREFIX));
        let mut rest = self.bytes;
        while rows.len() < elements {
            let (text, behind) = first_element(rest).ok_or_else(|| {
                format!(
                    "row {} of {name} ends beyond its tensor of {} bytes; send each text after its \
                     length in 4 bytes",
                    rows.len(),
                    self.bytes.len()
                )
            })?;
            rows.push(decode(text, rows.len(), name)?);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(format!(
                "{name} has {} bytes after its last row; send each text after its length in 4 bytes",
                rest.len()
            ));
        }
        Ok(rows)
    }
}

fn first_element(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<PREFIX>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// Returns the text; the message has the reasons of Python's decoder.
fn decode<'a>(text: &'a [u8], row: usize, name: &str) -> Result<&'a str, String> {
    std::str::from_utf8(text).map_err(|error| {
        let at = error.valid_up_to();
        let reason = match (error.error_len(), text[at]) {
            (None, _) => "unexpected end of data",
            (Some(_), 0x80..=0xC1 | 0xF5..) => "invalid start byte",
            _ => "invalid continuation byte",
        };
        format!("row {row} of {name} is not valid UTF-8 ({reason} at byte {at}); send UTF-8 text")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(rows: &[&[u8]]) -> Vec<u8> {
        rows.iter()
            .flat_map(|row| {
                let mut element = u32::try_from(row.len()).unwrap().to_le_bytes().to_vec();
                element.extend_from_slice(row);
                element
            })
            .collect()
    }

    fn read<'a>(shape: &'a [i64], bytes: &'a [u8], batched: bool) -> Result<Vec<&'a str>, String> {
        Input { name: "TEXT", shape, bytes }.rows(batched)
    }

    #[test]
    fn rows_are_read_in_order() {
        let bytes = encoded(&[b"a", b"", "été".as_bytes()]);
        assert_eq!(read(&[3, 1], &bytes, true).unwrap(), ["a", "", "été"]);
        assert_eq!(read(&[1, 3], &bytes, false).unwrap(), ["a", "", "été"]);
        assert_eq!(read(&[3], &bytes, true).unwrap(), ["a", "", "été"]);
    }

    #[test]
    fn shapes_are_checked() {
        let bytes = encoded(&[b"a", b"b"]);
        assert_eq!(
            read(&[1, 2], &bytes, true).unwrap_err(),
            "TEXT has shape [1, 2], expected [rows, 1], one text per row"
        );
        assert!(read(&[0, 1], &[], true).unwrap_err().contains("has no rows"));
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let good = encoded(&[b"abc", b"d"]);
        for cut in 0..good.len() {
            assert!(
                read(&[2, 1], &good[..cut], true).unwrap_err().contains("ends beyond"),
                "{cut}"
            );
        }
        let mut long = good.clone();
        long[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(&[2, 1], &long, true).unwrap_err().starts_with("row 0 of TEXT ends beyond"));
        assert!(read(&[1, 1], &good, true).unwrap_err().contains("5 bytes after its last row"));
        assert!(read(&[MOST_ROWS, 1], &good, true).unwrap_err().starts_with("row 2 of TEXT"));
        let message = read(&[MOST_ROWS + 1, 1], &good, true).unwrap_err();
        assert_eq!(
            message,
            "TEXT has 1048577 rows, more than the 1048576 allowed; send fewer texts"
        );
    }

    #[test]
    fn reasons_are_those_of_python() {
        for (text, reason) in [
            (&b"ab\xff"[..], "invalid start byte at byte 2"),
            (b"\xc1\x80", "invalid start byte at byte 0"),
            (b"\xe2\x28\xa1", "invalid continuation byte at byte 0"),
            (b"\xed\xa0\x80", "invalid continuation byte at byte 0"),
            (b"a\xe2\x82", "unexpected end of data at byte 1"),
        ] {
            let bytes = encoded(&[b"fine", text]);
            assert_eq!(
                read(&[2, 1], &bytes, true).unwrap_err(),
                format!("row 1 of TEXT is not valid UTF-8 ({reason}); send UTF-8 text")
            );
        }
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let bytes = vec![0; MOST_BYTES + 4];
        assert!(
            read(&[1, 1], &bytes, true).unwrap_err().contains("more than the 67108864 allowed")
        );
    }
}
