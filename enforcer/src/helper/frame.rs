//! Messages on the socket pair: the lengths of head and body, the head as JSON, the body as it is.

use std::io;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The longest head: the headers of a request or an answer, as numbers.
const MOST_HEAD_BYTES: usize = 512 << 10;

/// A head with the number of its question. The answer has the same.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Numbered<T> {
    pub(crate) id: u64,
    pub(crate) content: T,
}

/// A message as bytes. Fails if it is too long, with a body of that many bytes at most.
pub(crate) fn encode(head: &impl Serialize, body: &[u8], most_body_bytes: usize) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    check(head.len(), body.len(), most_body_bytes)?;
    let length = |part: &[u8]| u32::try_from(part.len()).map_err(io::Error::other);
    let mut frame = Vec::with_capacity(8 + head.len() + body.len());
    frame.extend_from_slice(&length(&head)?.to_le_bytes());
    frame.extend_from_slice(&length(body)?.to_le_bytes());
    frame.extend_from_slice(&head);
    frame.extend_from_slice(body);
    Ok(frame)
}

/// Writes a message; not cancel-safe.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    to.write_all(frame).await
}

/// Reads a message with a body of that many bytes at most; `None` at the end of all. Not cancel-safe.
pub(crate) async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
    most_body_bytes: usize,
) -> io::Result<Option<(T, Bytes)>> {
    let of_head = match from.read_u32_le().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = |length: u32| usize::try_from(length).map_err(io::Error::other);
    let (of_head, of_body) = (length(of_head)?, length(from.read_u32_le().await?)?);
    check(of_head, of_body, most_body_bytes)?;
    let mut head = vec![0; of_head];
    from.read_exact(&mut head).await?;
    let mut body = vec![0; of_body];
    from.read_exact(&mut body).await?;
    Ok(Some((serde_json::from_slice(&head)?, body.into())))
}

fn check(of_head: usize, of_body: usize, most_body_bytes: usize) -> io::Result<()> {
    if of_head <= MOST_HEAD_BYTES && of_body <= most_body_bytes {
        return Ok(());
    }
    let message = format!(
        "a message of {of_head} and {of_body} bytes: at most {MOST_HEAD_BYTES} and {most_body_bytes} are taken"
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_where_there_is_to_be_none_is_an_error() {
        let mut bytes = &encode(&7_u64, b"body", 100).unwrap()[..];
        assert!(read::<u64>(&mut bytes, 0).await.is_err());
    }

    #[tokio::test]
    async fn messages_arrive_one_after_the_other_and_end() {
        let first = encode(&7_u64, b"body", 100).unwrap();
        let second = encode(&8_u64, b"", 0).unwrap();
        let mut bytes = &[first, second].concat()[..];
        assert_eq!(read(&mut bytes, 100).await.unwrap(), Some((7_u64, Bytes::from_static(b"body"))));
        assert_eq!(read(&mut bytes, 100).await.unwrap(), Some((8_u64, Bytes::new())));
        assert_eq!(read::<u64>(&mut bytes, 100).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_too_long_or_no_message_is_an_error() {
        assert!(encode(&1, &[0; 101], 100).is_err());
        let mut long = &[0xff; 64][..];
        assert!(read::<u64>(&mut long, 100).await.is_err());
        let mut wrong = &encode(&"text", b"", 0).unwrap()[..];
        assert!(read::<u64>(&mut wrong, 100).await.is_err());
        let whole = encode(&7_u64, b"body", 100).unwrap();
        assert!(read::<u64>(&mut &whole[..whole.len() - 1], 100).await.is_err(), "cut off");
    }
}
