//! A backend that panics where it is told to, for tests of what becomes of the panic: in the
//! server, and of everybody else's requests.
//!
//! Where is said by the backend setting `panic` (`initialize`, `attributes`, `finalize`) or the
//! model parameter `panic` (`model_initialize`, `model_finalize`, `instance_initialize`,
//! `instance_finalize`, `ready`, `execute`). Executions answer with INPUT0 as OUTPUT0; those that
//! are to panic do so after they answered the first request of a batch, and only if the last one's
//! INPUT0 begins with a byte that is not 0.
//!
//! Model parameter `half`: only the first half of each output is written.

#![forbid(unsafe_code)]

use conch_backend_sdk as sdk;
use sdk::{Batch, Error, InstanceContext, ModelContext, Request};

sdk::export_backend!(Faulty, ready);

/// Where to panic, if anywhere.
#[derive(Clone)]
struct Place(Option<String>);

impl Place {
    fn of(text: Option<&str>) -> Place {
        Place(text.map(str::to_owned))
    }

    fn is(&self, place: &str) -> bool {
        self.0.as_deref() == Some(place)
    }

    fn pass(&self, place: &str) {
        assert!(!self.is(place), "as ordered, in {place}");
    }
}

pub struct Faulty(Place);

impl sdk::Backend for Faulty {
    type Model = Model;

    fn initialize(context: &sdk::BackendContext) -> Result<Self, Error> {
        let place = Place::of(context.config().setting("panic"));
        place.pass("initialize");
        Ok(Faulty(place))
    }

    fn attributes(&self, _attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        self.0.pass("attributes");
        Ok(())
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.0.pass("finalize");
    }
}

pub struct Model(Place, bool);

impl sdk::Model for Model {
    type Backend = Faulty;
    type Instance = Instance;

    fn initialize(_backend: &Faulty, context: &mut ModelContext) -> Result<Self, Error> {
        let place = Place::of(context.config().parameter("panic"));
        place.pass("model_initialize");
        let writes_half = context.config().parameter("half").is_some();
        Ok(Model(place, writes_half))
    }
}

impl sdk::Ready for Model {
    fn check_ready(&self) -> Result<(), Error> {
        self.0.pass("ready");
        Ok(())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.0.pass("model_finalize");
    }
}

pub struct Instance(Place);

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, _context: &InstanceContext) -> Result<Self, Error> {
        model.0.pass("instance_initialize");
        Ok(Instance(model.0.clone()))
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        let mut requests = batch.requests();
        let (Some(first), last) = (requests.next(), batch.requests().last()) else {
            return Ok(());
        };
        answer(&first, model.1)?;
        if let Some(last) = last
            && model.0.is("execute")
        {
            let input = last.input(c"INPUT0")?;
            let mark = input.contiguous()?.and_then(|bytes| bytes.read(0));
            assert!(mark == Some([0]), "as ordered, in execute");
        }
        requests.try_for_each(|request| answer(&request, model.1))
    }
}

fn answer(request: &Request<'_>, writes_half: bool) -> Result<(), Error> {
    let input = request.input(c"INPUT0")?;
    let response = request.respond()?;
    let mut output = response.output_like(c"OUTPUT0", &input)?;
    let mut left = match writes_half {
        true => input.byte_count() / 2,
        false => input.byte_count(),
    };
    input.for_each_buffer(|piece| {
        let piece = piece.get(0..left.min(piece.len())).unwrap_or_default();
        left -= piece.len();
        output.write(piece)
    })?;
    response.send()
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.0.pass("instance_finalize");
    }
}
