//! Cutting PNG files: pure.

use std::io::{Read as _, Write as _};

use anyhow::{Context as _, ensure};
use flate2::{Compression, Crc, read::ZlibDecoder, write::ZlibEncoder};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The upper rows of a picture, compressed as well as can be. A row refers to the one above it alone, so none is changed.
pub(super) fn top(png: &[u8], rows: u32) -> anyhow::Result<Vec<u8>> {
    let mut rest = png.strip_prefix(SIGNATURE).context("no PNG")?;
    let mut header = Header::default();
    let (mut packed, mut others) = (Vec::new(), Vec::new());
    while let Some((kind, data, next)) = chunk(rest) {
        match &kind {
            b"IHDR" => header = Header::parse(data)?,
            b"IDAT" => packed.extend_from_slice(data),
            b"IEND" => break,
            _ => others.push((kind, data)),
        }
        rest = next;
    }
    ensure!(rows <= header.rows, "the picture has {} rows, not {rows}", header.rows);
    let mut pixels = Vec::new();
    ZlibDecoder::new(packed.as_slice()).read_to_end(&mut pixels).context("a damaged PNG")?;
    let length = usize::try_from(rows)? * header.row_bytes;
    let kept = pixels.get(..length).context("a PNG without its last rows")?;
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(kept)?;

    let mut cut = SIGNATURE.to_vec();
    put(&mut cut, *b"IHDR", &header.with_rows(rows))?;
    for (kind, data) in others {
        put(&mut cut, kind, data)?;
    }
    put(&mut cut, *b"IDAT", &encoder.finish()?)?;
    put(&mut cut, *b"IEND", b"")?;
    Ok(cut)
}

/// What is needed of a picture's header.
#[derive(Default)]
struct Header {
    rows: u32,
    /// With the byte that names its filter.
    row_bytes: usize,
    bytes: [u8; 13],
}

impl Header {
    fn parse(data: &[u8]) -> anyhow::Result<Self> {
        let bytes: [u8; 13] = data.try_into().context("a PNG's header of another size")?;
        let [w0, w1, w2, w3, h0, h1, h2, h3, depth, color, _, _, interlaced] = bytes;
        ensure!(interlaced == 0, "an interlaced PNG");
        let channels = match color {
            0 | 3 => 1,
            2 => 3,
            4 => 2,
            _ => 4,
        };
        let columns = usize::try_from(u32::from_be_bytes([w0, w1, w2, w3]))?;
        let row_bytes = 1 + (columns * channels * usize::from(depth)).div_ceil(8);
        Ok(Self { rows: u32::from_be_bytes([h0, h1, h2, h3]), row_bytes, bytes })
    }

    fn with_rows(&self, rows: u32) -> Vec<u8> {
        let (columns, rest) = (self.bytes.iter().take(4), self.bytes.iter().skip(8));
        columns.chain(&rows.to_be_bytes()).chain(rest).copied().collect()
    }
}

/// The first chunk's kind and data, and what follows it.
fn chunk(png: &[u8]) -> Option<([u8; 4], &[u8], &[u8])> {
    let (length, rest) = png.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    let (data, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    let (_checksum, rest) = rest.split_first_chunk::<4>()?;
    Some((*kind, data, rest))
}

fn put(png: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) -> anyhow::Result<()> {
    let mut checksum = Crc::new();
    checksum.update(&kind);
    checksum.update(data);
    png.extend_from_slice(&u32::try_from(data.len())?.to_be_bytes());
    png.extend_from_slice(&kind);
    png.extend_from_slice(data);
    png.extend_from_slice(&checksum.sum().to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A grey picture of two columns, with that many rows.
    fn grey(rows: u8) -> Vec<u8> {
        let pixels: Vec<u8> = (0..rows).flat_map(|row| [0, row, 255 - row]).collect();
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&pixels).unwrap();
        let mut png = SIGNATURE.to_vec();
        put(&mut png, *b"IHDR", &[0, 0, 0, 2, 0, 0, 0, rows, 8, 0, 0, 0, 0]).unwrap();
        put(&mut png, *b"tEXt", b"a\0b").unwrap();
        put(&mut png, *b"IDAT", &encoder.finish().unwrap()).unwrap();
        put(&mut png, *b"IEND", b"").unwrap();
        png
    }

    #[test]
    fn the_upper_rows_are_the_same_picture_with_fewer() {
        assert_eq!(top(&grey(5), 3).unwrap(), grey(3));
        assert_eq!(top(&grey(5), 5).unwrap(), grey(5));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        assert!(top(&grey(5), 6).is_err());
        assert!(top(b"GIF89a", 1).is_err());
        let png = grey(5);
        assert!(top(&png[..png.len() - 30], 1).is_err());
    }
}
