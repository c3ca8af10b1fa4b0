//! HTTP/1.1 under the stores' protocols, on the runtime of the calling thread.
//!
//! Every wait has a bound: for a connection, for the head of a reply, and for each piece of a body;
//! so has the size of a reply. Connections are used again within one operation; they end with its
//! runtime, and who finds such a one makes another.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;

/// Makes the clients of all stores; what they have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connector(Arc<IdleConnections>);

/// Connections that nobody uses, by protocol and authority.
#[derive(Default)]
struct IdleConnections(Mutex<HashMap<String, Vec<RequestSender>>>);

type RequestSender = http1::SendRequest<HttpRequestBody>;

#[derive(Debug)]
struct PooledClient {
    idle: Arc<IdleConnections>,
    allows_http: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .is_some_and(|value| value == "true");
        Ok(HttpClient::new(PooledClient {
            idle: Arc::clone(&self.0),
            allows_http,
        }))
    }
}

// What the attribute of the `async-trait` crate makes of `async fn call`.
impl HttpService for PooledClient {
    fn call<'s, 'a>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(self.exchange(request))
    }
}

impl PooledClient {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let target = HttpTarget::of(&request, self.allows_http)?;
        // One that was idle may just have ended.
        while let Some(sender) = self.idle.pop(&target.key()) {
            match self.send(sender, &target, request.clone()).await {
                Err(error) if error.kind() == HttpErrorKind::Request => {}
                outcome => return outcome,
            }
        }
        let connecting = timeout(CONNECT_TIMEOUT, target.connect());
        let sender = match connecting.await {
            Ok(connected) => {
                connected.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?
            }
            Err(_) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                return Err(timed_out(
                    HttpErrorKind::Connect,
                    format!("no connection to {} within {seconds} s", target.authority),
                ));
            }
        };
        self.send(sender, &target, request).await
    }

    async fn send(
        &self,
        mut sender: RequestSender,
        target: &HttpTarget,
        request: HttpRequest,
    ) -> Result<HttpResponse, HttpError> {
        let request = target.address(request)?;
        if sender.ready().await.is_err() {
            let error = io::Error::from(io::ErrorKind::ConnectionAborted);
            return Err(HttpError::new(HttpErrorKind::Request, error));
        }
        let reply = timeout(READ_TIMEOUT, sender.send_request(request)).await;
        let (head, body) = match reply {
            Ok(reply) => reply.map_err(broken)?.into_parts(),
            Err(_) => return Err(silence(HttpErrorKind::Timeout)),
        };
        let body = HttpReply {
            body,
            bytes_left: REPLY_BYTES_MAX,
            patience: Box::pin(sleep(READ_TIMEOUT)),
            is_waiting: false,
            sender: Some(sender),
            idle: Arc::clone(&self.idle),
            key: target.key(),
        };
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Where a request goes.
struct HttpTarget {
    is_tls: bool,
    host: String,
    port: u16,
    /// As the Host header has it.
    authority: String,
}

impl HttpTarget {
    fn of(request: &HttpRequest, allows_http: bool) -> Result<HttpTarget, HttpError> {
        let uri = request.uri();
        let wrong = |why: &str| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: {why}"));
            HttpError::new(HttpErrorKind::Unknown, error)
        };
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if allows_http => false,
            Some("http") => return Err(wrong("HTTP without TLS is not allowed here")),
            _ => return Err(wrong("neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        let host = authority.host();
        // An IPv6 address has brackets in a URI only.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(HttpTarget {
            is_tls,
            host: host.to_owned(),
            port: authority
                .port_u16()
                .unwrap_or(if is_tls { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
        })
    }

    fn key(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// The request as it is sent: the path alone in its first line, and the host as a header.
    fn address(
        &self,
        mut request: HttpRequest,
    ) -> Result<http::Request<HttpRequestBody>, HttpError> {
        let invalid = |error: http::Error| HttpError::new(HttpErrorKind::Unknown, error);
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = match path {
            Some(path) => http::Uri::builder()
                .path_and_query(path)
                .build()
                .map_err(invalid)?,
            None => http::Uri::from_static("/"),
        };
        let host =
            http::HeaderValue::from_str(&self.authority).map_err(|error| invalid(error.into()))?;
        let headers = request.headers_mut();
        headers.insert(http::header::HOST, host);
        headers.insert(
            http::header::USER_AGENT,
            http::HeaderValue::from_static(USER_AGENT),
        );
        Ok(request)
    }

    async fn connect(&self) -> io::Result<RequestSender> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        socket.set_nodelay(true)?;
        let stream: Box<dyn HttpStream> = if self.is_tls {
            let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
            Box::new(TlsConnector::from(tls()?).connect(name, socket).await?)
        } else {
            Box::new(socket)
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            // What breaks it is told to whoever waits for a reply.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

trait HttpStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> HttpStream for T {}

impl IdleConnections {
    fn pop(&self, key: &str) -> Option<RequestSender> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let senders = idle.get_mut(key)?;
        senders.retain(|sender| !sender.is_closed());
        senders.pop()
    }

    fn push(&self, key: &str, sender: RequestSender) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let senders = idle.entry(key.to_owned()).or_default();
        senders.retain(|sender| !sender.is_closed());
        if senders.len() < IDLE_MAX {
            senders.push(sender);
        }
    }
}

impl fmt::Debug for IdleConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Idle")
    }
}

/// A reply's body. Its connection is idle again when it ends.
struct HttpReply {
    body: Incoming,
    /// How many may still come.
    bytes_left: usize,
    /// Runs from the moment at which nothing was there: how long the reader takes does not count.
    patience: Pin<Box<Sleep>>,
    is_waiting: bool,
    sender: Option<RequestSender>,
    idle: Arc<IdleConnections>,
    key: String,
}

impl Body for HttpReply {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => {
                this.is_waiting = false;
                let is_over = frame.is_none() || this.body.is_end_stream();
                if is_over && let Some(sender) = this.sender.take() {
                    this.idle.push(&this.key, sender);
                }
                let frame = frame.map(|frame| frame.map_err(broken));
                Poll::Ready(frame.map(|frame| this.count_bytes(frame?)))
            }
            Poll::Pending => {
                if !this.is_waiting {
                    this.is_waiting = true;
                    let deadline = Instant::now() + READ_TIMEOUT;
                    this.patience.as_mut().reset(deadline);
                }
                let patience = this.patience.as_mut().poll(context);
                patience.map(|()| Some(Err(silence(HttpErrorKind::Timeout))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl HttpReply {
    fn count_bytes(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, HttpError> {
        let count = frame.data_ref().map_or(0, Bytes::len);
        match self.bytes_left.checked_sub(count) {
            Some(left) => self.bytes_left = left,
            None => {
                let words = format!("a reply of more than {REPLY_BYTES_MAX} bytes");
                return Err(HttpError::new(
                    HttpErrorKind::Decode,
                    io::Error::other(words),
                ));
            }
        }
        Ok(frame)
    }
}

/// What every TLS connection shares; the certificates are the system's, or those of `SSL_CERT_FILE`
/// and `SSL_CERT_DIR`.
fn tls() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (count, _) = roots.add_parsable_certificates(found.certs);
    if count == 0 {
        return Err(io::Error::other(
            "there are no certificates of authorities on this machine (package ca-certificates, \
             or SSL_CERT_FILE)",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

/// How a connection that broke is told: a request on it may be tried again.
fn broken(error: hyper::Error) -> HttpError {
    let kind = if error.is_closed() || error.is_canceled() {
        HttpErrorKind::Request
    } else if error.is_parse() || error.is_user() {
        HttpErrorKind::Unknown
    } else {
        HttpErrorKind::Interrupted
    };
    HttpError::new(kind, error)
}

fn silence(kind: HttpErrorKind) -> HttpError {
    let seconds = READ_TIMEOUT.as_secs();
    timed_out(kind, format!("no answer for {seconds} s"))
}

fn timed_out(kind: HttpErrorKind, words: String) -> HttpError {
    HttpError::new(kind, io::Error::new(io::ErrorKind::TimedOut, words))
}

/// A store answers within milliseconds, one on another continent within one second with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A listing of 1,000 objects or the next piece of a body takes less than a second where anything
/// works.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Of each connection: what arrives at 1 GB/s in a quarter of a millisecond.
const BUFFER_MAX: usize = 256 * 1024;
/// Four times the largest part of an object that is asked for; a listing's page of 5,000 names of 1
/// KiB has some 15 MB.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// As many as one operation uses at once, and some.
const IDLE_MAX: usize = 32;
const USER_AGENT: &str = concat!("conch/", env!("CARGO_PKG_VERSION"));
