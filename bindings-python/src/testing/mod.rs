//! The server in memory, for tests of programs.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use redlatch::{Error, ErrorKind};
use redlatch_testing::MemoryServer as Server;

use crate::values::{number, raise, text, time};

/// A server in memory, in this process. The mutex is locked with the GIL only, to copy the
/// reference, so that a fork finds it free.
#[pyclass(module = "redlatch.testing", frozen)]
pub(crate) struct MemoryServer {
    server: Mutex<Option<Arc<Server>>>,
    url: String,
}

impl MemoryServer {
    fn running(&self, py: Python<'_>) -> PyResult<Arc<Server>> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.clone().ok_or_else(|| {
            let text = "the in-memory server is stopped; start another one";
            raise(py, &Error::new(ErrorKind::Closed, text))
        })
    }

    /// Waits for the server's thread without the GIL.
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&Server) -> T + Send) -> PyResult<T> {
        let server = self.running(py)?;
        Ok(py.detach(|| act(&server)))
    }
}

#[pymethods]
impl MemoryServer {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let server = py.detach(Server::start);
        let server = server.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(MemoryServer {
            url: server.url().to_owned(),
            server: Mutex::new(Some(Arc::new(server))),
        })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    fn advance(&self, py: Python<'_>, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        let _: f64 = number("seconds", seconds, "give it a number that is not negative")?;
        // The row has the bounds of any time.
        let by = time("wait", seconds, Some("seconds"))?;
        self.with(py, |server| server.advance(by))
    }

    fn take_away(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        let name = text(
            name,
            "name",
            "give it as a str that can be encoded as UTF-8",
        )?;
        self.with(py, |server| server.take_away(name))
    }

    fn empty(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Server::empty)
    }

    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Server::pause)
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Server::resume)
    }

    fn disconnect(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Server::disconnect)
    }

    fn stop(&self, py: Python<'_>) {
        let server = self
            .server
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| drop(server));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, error: &Bound<'_, PyTuple>) {
        self.stop(error.py());
    }
}
