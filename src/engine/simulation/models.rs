//! The models of the simulated ensembles: what each makes of its inputs is written into its output.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use conch_config::{DataType, EnsembleStep, Ensembling};
use conch_memory::ByteView;
use conch_scheduler::testing::{EnsembleShape, Random};

use crate::ensemble::Ensemble;
use crate::execution::queue::ModelQueue;
use crate::model::registry::{ModelId, Registry, Snapshot, VersionEntry, VersionState, Versions};
use crate::simulation::inline_model::InlineModel;
use crate::testing::{config, parts};
use crate::threads::timer_thread::TimerThread;
use crate::{
    ModelVersion, Output, OwnedRequest, RequestContext, Response, ResponseParts, VersionParts,
};

pub(super) struct Models {
    pub(super) models: Vec<ComputingModel>,
    pub(super) ensembles: Vec<EnsembleModel>,
    registry: Arc<Registry>,
    timer_thread: Arc<TimerThread>,
}

/// A model that computes.
pub(super) struct ComputingModel {
    name: Arc<str>,
    arity: usize,
    pub(super) is_decoupled: bool,
    /// The last takes requests.
    versions: Vec<Arc<ModelVersion>>,
    /// Of the versions.
    pub(super) executors: Vec<Arc<InlineModel>>,
}

/// A model made of others.
pub(super) struct EnsembleModel {
    pub(super) model: Arc<ModelVersion>,
    pub(super) own: Arc<Ensemble>,
    pub(super) shape: EnsembleShape,
    /// By step.
    makers: Vec<StepTarget>,
    inflight_max: u64,
    /// One of its steps is an ensemble.
    pub(super) is_nested: bool,
}

/// What a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepTarget {
    Plain(usize),
    /// The ensemble of this number; what it makes is its first output.
    Composed(usize),
}

impl Models {
    /// Two models of one input, two of two, one decoupled one of each, and two ensembles of them,
    /// the second of which may use the first.
    pub(super) fn random(random: &mut Random) -> Models {
        let timer_thread = Arc::new(TimerThread::default());
        let kinds = [
            (1, false),
            (1, false),
            (2, false),
            (2, false),
            (1, true),
            (2, true),
        ];
        let kinds = kinds.into_iter().enumerate();
        let models = kinds.map(|(index, (arity, is_decoupled))| {
            let name: Arc<str> = Arc::from(format!("m{index}"));
            let (version, executor) = version(&name, 1, arity, is_decoupled, &timer_thread);
            ComputingModel {
                versions: vec![version],
                executors: vec![executor],
                name,
                arity,
                is_decoupled,
            }
        });
        let mut models = Models {
            models: models.collect(),
            ensembles: Vec::new(),
            registry: Arc::default(),
            timer_thread,
        };
        for _ in 0..2 {
            models.compose(random);
        }
        models.publish();
        models
    }

    fn compose(&mut self, random: &mut Random) {
        let shape = EnsembleShape::random(random);
        let inner = self
            .ensembles
            .first()
            .filter(|inner| !inner.model.config.is_decoupled);
        let uses_inner = inner.is_some() && random.chance(1, 2);
        let steps = shape.reads.iter().enumerate();
        let makers: Vec<StepTarget> = steps
            .map(|(step, reads)| {
                let is_decoupled = shape.decoupled == Some(step);
                if uses_inner && !is_decoupled && reads.len() == 1 && random.chance(1, 2) {
                    return StepTarget::Composed(0);
                }
                let fits = |model: &&(usize, &ComputingModel)| {
                    model.1.arity == reads.len() && model.1.is_decoupled == is_decoupled
                };
                let models = self.models.iter().enumerate();
                let fitting: Vec<usize> = models.filter(|m| fits(&m)).map(|(m, _)| m).collect();
                StepTarget::Plain(random.one_of(&fitting))
            })
            .collect();
        let inflight_max = random.one_of(&[0, 0, 1, 2]);
        let index = self.ensembles.len();
        let name = format!("e{index}");
        let step = |(step, maker): (usize, &StepTarget)| {
            let reads = shape.reads[step].iter();
            let (model, inputs, output) = match maker {
                StepTarget::Plain(model) => {
                    let places = (0..).map(|place| format!("I{place}"));
                    let inputs = places.zip(reads.cloned());
                    (format!("m{model}"), inputs.collect(), "O".to_owned())
                }
                StepTarget::Composed(inner) => {
                    let inputs = reads.map(|tensor| ("x".to_owned(), tensor.clone()));
                    let output = self.ensembles[*inner].shape.outputs[0].clone();
                    (format!("e{inner}"), inputs.collect(), output)
                }
            };
            EnsembleStep {
                model,
                namespace: String::new(),
                version: None,
                inputs,
                outputs: vec![(output, format!("t{step}"))],
            }
        };
        let ensembling = Ensembling {
            steps: makers.iter().enumerate().map(step).collect(),
            inflight_max,
        };
        let config = config(&text_of(&shape, &ensembling));
        let own = Ensemble::new(&config, &ensembling, &self.registry, &self.timer_thread);
        let parts = VersionParts {
            executor: Arc::clone(&own) as _,
            ..parts(&name, 1, &config)
        };
        self.ensembles.push(EnsembleModel {
            model: Arc::new(ModelVersion::new(parts)),
            own,
            shape,
            is_nested: makers.contains(&StepTarget::Composed(0)),
            makers,
            inflight_max: u64::from(inflight_max),
        });
    }

    /// A new version takes the place of a model's.
    pub(super) fn replace(&mut self, model: usize) {
        let own = &mut self.models[model];
        let number = own.versions.len() as i64 + 1;
        let (next, executor) = version(
            &own.name,
            number,
            own.arity,
            own.is_decoupled,
            &self.timer_thread,
        );
        own.versions.push(next);
        own.executors.push(executor);
        self.publish();
        let own = &self.models[model].versions;
        own[own.len() - 2].retire();
    }

    fn publish(&self) {
        let plain = self.models.iter().filter_map(|model| model.versions.last());
        let composed = self.ensembles.iter().map(|ensemble| &ensemble.model);
        let entries = plain.chain(composed).map(|model| {
            let entry = VersionEntry {
                state: VersionState::Ready,
                model: Some(Arc::clone(model)),
            };
            (
                ModelId::plain(&model.name),
                Versions::from([(model.version, entry)]),
            )
        });
        self.registry.publish(Snapshot::new(entries));
    }

    /// What a request of an ensemble is answered with, the `index`-th time.
    pub(super) fn answer(
        &self,
        ensemble: usize,
        wanted: &[usize],
        x: &str,
        index: u64,
    ) -> BTreeMap<String, String> {
        let shape = &self.ensembles[ensemble].shape;
        let outputs = wanted.iter().map(|output| &shape.outputs[*output]);
        outputs
            .map(|output| (output.clone(), self.value(ensemble, output, x, index)))
            .collect()
    }

    fn value(&self, ensemble: usize, tensor: &str, x: &str, index: u64) -> String {
        let composed = &self.ensembles[ensemble];
        let make = |step: usize, inputs: &[String]| match composed.makers[step] {
            StepTarget::Plain(model) => self.models[model].make(inputs),
            StepTarget::Composed(inner) => {
                let output = &self.ensembles[inner].shape.outputs[0];
                self.value(inner, output, &inputs[0], 0)
            }
        };
        composed.shape.value(tensor, x, index, &make)
    }

    /// How many requests a model may have at a time, if all ensembles bound them.
    pub(super) fn places_of(&self, model: usize) -> Option<u64> {
        let mut count = 0;
        for ensemble in &self.ensembles {
            let makers = ensemble.makers.iter();
            let uses = makers
                .filter(|maker| **maker == StepTarget::Plain(model))
                .count() as u64;
            if uses > 0 && ensemble.inflight_max == 0 {
                return None;
            }
            count += uses * ensemble.inflight_max;
        }
        Some(count)
    }

    /// Whether something waits for a core.
    pub(super) fn has_work(&self) -> bool {
        self.models.iter().any(|model| model.waiting_count() > 0)
    }

    pub(super) fn all_versions(&self) -> Vec<Arc<ModelVersion>> {
        let plain = self.models.iter().flat_map(|model| &model.versions);
        let composed = self.ensembles.iter().map(|ensemble| &ensemble.model);
        plain.chain(composed).cloned().collect()
    }
}

impl Drop for Models {
    /// Models and registry hold each other.
    fn drop(&mut self) {
        self.registry.publish(Snapshot::default());
    }
}

impl ComputingModel {
    pub(super) fn make(&self, inputs: &[String]) -> String {
        made_of(&self.name, inputs)
    }

    /// Batches that submitters executed.
    pub(super) fn executed_count(&self) -> u64 {
        let executors = self.executors.iter();
        executors.map(|executor| executor.executed_count()).sum()
    }

    /// What the core of one of its versions finds.
    pub(super) fn form(&self, random: &mut Random) -> Vec<OwnedRequest> {
        let version = random.below(self.versions.len() as u64) as usize;
        let executor = &self.executors[version];
        match executor.is_open_to_cores() {
            true => executor.queue.form_now(),
            false => Vec::new(),
        }
    }

    /// Requests in its queues.
    pub(super) fn waiting_count(&self) -> u64 {
        let versions = self.versions.iter();
        versions
            .map(|version| version.statistics.totals().pending_count)
            .sum()
    }
}

/// What the model of this name makes of its inputs.
pub(super) fn made_of(name: &str, inputs: &[String]) -> String {
    format!("{name}({})", inputs.join(","))
}

/// The inputs of a request, in the order of the model's.
pub(super) fn inputs_of(live: &OwnedRequest) -> Vec<String> {
    let text = |name: &str| {
        let input = live.inputs.iter().find(|input| *input.name == *name)?;
        let bytes = input
            .chunks
            .iter()
            .flat_map(|chunk| chunk.as_slice().unwrap());
        Some(String::from_utf8(bytes.copied().collect()).unwrap())
    };
    ["I0", "I1"].into_iter().filter_map(text).collect()
}

/// A response that says `made`.
pub(super) fn answer_of(origin: &RequestContext, made: &str) -> Response {
    let output = Output {
        name: "O".into(),
        data_type: DataType::Uint8,
        shape: [made.len() as i64].into_iter().collect(),
        data: ByteView::copy_of(made.as_bytes()),
    };
    Response::from(ResponseParts {
        model: Arc::clone(&origin.model),
        outputs: std::iter::once(output).collect(),
        parameters: Vec::new(),
    })
}

fn version(
    name: &Arc<str>,
    number: i64,
    arity: usize,
    is_decoupled: bool,
    timer_thread: &Arc<TimerThread>,
) -> (Arc<ModelVersion>, Arc<InlineModel>) {
    static CONFIGS: [OnceLock<Arc<conch_config::ResolvedConfig>>; 4] =
        [const { OnceLock::new() }; 4];
    let config = CONFIGS[(arity - 1) * 2 + usize::from(is_decoupled)].get_or_init(|| {
        let inputs = (0..arity).map(|place| tensor("input", &format!("I{place}")));
        let text: String = inputs.chain([tensor("output", "O")]).collect();
        config(&format!(
            "backend: 'fake' {text} {}",
            transaction(is_decoupled)
        ))
    });
    let queue = ModelQueue::new(config, &[1], Arc::clone(timer_thread), None).unwrap();
    let executor = InlineModel::new(name, queue);
    let parts = VersionParts {
        executor: Arc::clone(&executor) as _,
        ..parts(name, number, config)
    };
    (Arc::new(ModelVersion::new(parts)), executor)
}

fn text_of(shape: &EnsembleShape, ensembling: &Ensembling) -> String {
    let outputs: String = shape
        .outputs
        .iter()
        .map(|name| tensor("output", name))
        .collect();
    let pairs = |kind: &str, pairs: &[(String, String)]| -> String {
        let pair = |(name, tensor): &(String, String)| {
            format!("{kind} {{ key: '{name}' value: '{tensor}' }} ")
        };
        pairs.iter().map(pair).collect()
    };
    let steps = ensembling.steps.iter().map(|step| {
        format!(
            "step {{ model_name: '{}' model_version: -1 {} {} }}\n",
            step.model,
            pairs("input_map", &step.inputs),
            pairs("output_map", &step.outputs)
        )
    });
    format!(
        "platform: 'ensemble' {} {outputs} ensemble_scheduling {{ {} }} {}",
        tensor("input", "x"),
        steps.collect::<String>(),
        transaction(shape.decoupled.is_some())
    )
}

fn tensor(kind: &str, name: &str) -> String {
    format!("{kind} {{ name: '{name}' data_type: TYPE_UINT8 dims: -1 }}\n")
}

fn transaction(is_decoupled: bool) -> String {
    format!("model_transaction_policy {{ decoupled: {is_decoupled} }}")
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, ensemble) in self.ensembles.iter().enumerate() {
            let EnsembleModel {
                shape,
                makers,
                inflight_max,
                ..
            } = ensemble;
            write!(
                f,
                "e{index} is {shape:?} of {makers:?}, {inflight_max} at a time; "
            )?;
        }
        Ok(())
    }
}
