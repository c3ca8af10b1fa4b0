//! HTTP over a Unix socket.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Connects to one socket, whatever the host of the URL.
#[derive(Debug)]
pub(super) struct UnixConnector {
    path: PathBuf,
}

impl UnixConnector {
    pub(super) fn new(path: PathBuf) -> UnixConnector {
        UnixConnector { path }
    }
}

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<UnixTransport>, Error> {
        let config = details.config;
        Ok(Some(UnixTransport {
            stream: UnixStream::connect(&self.path)?,
            buffers: LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size()),
        }))
    }
}

/// A connection.
pub(super) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl fmt::Debug for UnixTransport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UnixTransport").finish()
    }
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(left(timeout.for_write())?)?;
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        let sent = (&self.stream).write_all(output);
        sent.map_err(|cause| late(cause, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(left(timeout.for_read())?)?;
        let room = self.buffers.input_append_buf();
        let received = (&self.stream).read(room);
        let count = received.map_err(|cause| late(cause, timeout))?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        // Nothing is due before the next request, so whatever there is to read is the end.
        let mut byte = [0];
        let mut look = |stream: &UnixStream| -> io::Result<usize> {
            stream.set_nonblocking(true)?;
            let seen = (&*stream).read(&mut byte);
            stream.set_nonblocking(false)?;
            seen
        };
        matches!(look(&self.stream), Err(cause) if cause.kind() == io::ErrorKind::WouldBlock)
    }
}

/// What is left until the deadline; none without one.
fn left(timeout: NextTimeout) -> Result<Option<Duration>, Error> {
    match timeout.after.is_zero() {
        true => Err(Error::Timeout(timeout.reason)),
        false => Ok(timeout.not_zero().map(|left| *left)),
    }
}

fn late(cause: io::Error, timeout: NextTimeout) -> Error {
    match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => Error::Io(cause),
    }
}
