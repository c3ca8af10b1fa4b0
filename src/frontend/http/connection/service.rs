//! The answers of a listener, behind the connections that ask for them.

use std::borrow::Cow;
use std::rc::Rc;

use super::body::{BodyPlacement, ReceivedBody};
use super::state::{ConnectionClosed, HttpConnection};
use crate::access::{GrantedRoute, GuardedRoute};
use crate::http::answer::HttpResponse;
use crate::http::head::RequestHead;
use crate::options::FrontendOptions;
use crate::shard::{HeldPermit, Shard};
use crate::tls::TlsConfig;

/// How a listener answers requests.
pub(crate) trait HttpService {
    /// What a request asks for.
    type Route<'a>: GuardedRoute;
    /// A request whose head is known.
    type Plan;

    /// What its connections are encrypted by; none if they are not.
    fn tls<'a>(&self, _options: &'a FrontendOptions) -> Option<&'a TlsConfig> {
        None
    }

    /// Says what is asked for, and so what one must be allowed to do.
    fn route<'a>(&self, shard: &'a Shard, head: &'a RequestHead<'_>) -> Self::Route<'a>;

    /// Decides from the head alone.
    fn plan(
        &self,
        shard: &Rc<Shard>,
        head: &RequestHead<'_>,
        route: GrantedRoute<Self::Route<'_>>,
    ) -> Self::Plan;

    /// The model, and its version, without which there is no plan for the request, where models
    /// come when they are asked for.
    fn required_model<'a>(
        &'a self,
        _head: &'a RequestHead<'_>,
        _route: &'a Self::Route<'_>,
    ) -> Option<(Cow<'a, str>, Option<&'a str>)> {
        None
    }

    /// Gives `plan` what keeps the required model.
    fn attach_permit(&self, _plan: &mut Self::Plan, _permit: HeldPermit) {}

    /// What answers `answer`, whatever was asked for.
    fn plan_refusal(&self, answer: HttpResponse) -> Self::Plan;

    /// Whether the answer needs neither a body nor any waiting.
    fn is_at_once(&self, plan: &Self::Plan) -> bool;

    /// Where the body goes; none if it is of no interest.
    fn placement(&self, plan: &Self::Plan) -> Option<BodyPlacement>;

    /// Answers. `body` is what `placement` asked for; `scratch` is an empty buffer for the answer's
    /// body.
    async fn answer(
        &self,
        plan: Self::Plan,
        body: Option<ReceivedBody>,
        scratch: Vec<u8>,
        connection: &mut HttpConnection,
    ) -> Result<HttpResponse, ConnectionClosed>;
}
