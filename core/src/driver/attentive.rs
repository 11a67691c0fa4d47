//! A stream that keeps what a server says before it is asked.
//!
//! A server with too many clients says so and closes the connection at once. redis-rs drops data
//! that arrives before any request, and stops reading after a failed write. The reason would be
//! lost, and the caller would only learn that the connection broke.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Until the server has said something, reads wait for the first write, and writes do not fail.
/// Reading the answer shows what is wrong.
pub(super) struct Attentive<S> {
    stream: S,
    stage: Stage,
}

enum Stage {
    /// Nothing was written. The waker is that of a pending read.
    Silent(Option<Waker>),
    /// Something was written; the server has not said anything yet.
    Asked,
    /// The server has answered.
    Heard,
}

impl<S> Attentive<S> {
    pub(super) fn new(stream: S) -> Self {
        Attentive {
            stream,
            stage: Stage::Silent(None),
        }
    }

    fn asked(&mut self) {
        if let Stage::Silent(reader) = &mut self.stage {
            let reader = reader.take();
            self.stage = Stage::Asked;
            if let Some(reader) = reader {
                reader.wake();
            }
        }
    }

    /// The result to report for a write of `wanted` bytes. A failed write counts as done until the
    /// server has said something.
    fn written(&mut self, result: io::Result<usize>, wanted: usize) -> io::Result<usize> {
        self.asked();
        match self.stage {
            Stage::Heard => result,
            Stage::Silent(_) | Stage::Asked => Ok(result.unwrap_or(wanted)),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Attentive<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Stage::Silent(reader) = &mut this.stage {
            *reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let result = ready!(Pin::new(&mut this.stream).poll_read(cx, into));
        this.stage = Stage::Heard;
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Attentive<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes));
        Poll::Ready(this.written(result, bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, slices));
        Poll::Ready(this.written(result, slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = ready!(Pin::new(&mut this.stream).poll_flush(cx));
        Poll::Ready(if matches!(this.stage, Stage::Heard) {
            result
        } else {
            Ok(())
        })
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn words_of_a_server_before_it_closes_are_read() {
        let (ours, mut server) = duplex(64);
        server
            .write_all(b"-ERR no place\r\n")
            .await
            .expect("written");
        drop(server);
        let mut stream = Attentive::new(ours);
        let unasked = tokio::select! {
            biased;
            _ = stream.read_u8() => true,
            () = std::future::ready(()) => false,
        };
        assert!(!unasked, "nothing is read before something was written");
        stream
            .write_all(b"PING\r\n")
            .await
            .expect("what is wrong shows when the answer is read");
        stream.flush().await.expect("the same");
        let mut said = String::new();
        stream
            .read_to_string(&mut said)
            .await
            .expect("all that there is");
        assert_eq!(said, "-ERR no place\r\n");
        stream.write_all(b"PING\r\n").await.expect_err("it is gone");
    }
}
