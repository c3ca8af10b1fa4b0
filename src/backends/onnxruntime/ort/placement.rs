//! Where ONNX Runtime has placed the operators of a graph, as its log tells while a session is
//! made.
//!
//! The C API of the versions in use has no function that tells it. What is looked for is logged on
//! the thread that makes the session: as a warning of CUDA's provider, as information of
//! TensorRT's.

use std::cell::Cell;

/// `<count> Memcpy nodes are added to the graph <name> for CUDAExecutionProvider. ...`, for each
/// graph that has some.
const COPIES: &str = " Memcpy nodes are added to the graph ";
/// `[TensorRT EP] Whole graph will run on TensorRT execution provider`, also for a graph within an
/// operator of a graph that does not.
const WHOLE_GRAPH: &str = "Whole graph will run on TensorRT execution provider";
/// `[TensorRT EP] Graph is partitioned and number of subgraphs running on TensorRT execution
/// provider is <count>`.
const PARTITIONED: &str = "Graph is partitioned and number of subgraphs running on TensorRT";
/// `[TensorRT EP] No graph will run on TensorRT execution provider`.
const NO_GRAPH: &str = "No graph will run on TensorRT execution provider";

/// What was told of a session that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// Copies between the GPU and operators that read or write main memory.
    pub(super) copy_count: u64,
    /// TensorRT runs a graph as a whole.
    has_whole_graph: bool,
    /// TensorRT leaves operators of a graph to others.
    has_divided_graph: bool,
}

impl Placement {
    /// TensorRT runs all operators.
    pub(super) fn is_whole_on_tensorrt(self) -> bool {
        self.has_whole_graph && !self.has_divided_graph
    }
}

thread_local! {
    /// Of the session that this thread makes; none: it makes none.
    static TOLD: Cell<Option<Placement>> = const { Cell::new(None) };
}

/// Makes a session by `make`. Returns what is told meanwhile.
pub(super) fn watched<T>(make: impl FnOnce() -> T) -> (T, Placement) {
    TOLD.set(Some(Placement::default()));
    let made = make();
    (made, TOLD.take().unwrap_or_default())
}

/// Looks at a message of ONNX Runtime's log.
pub(super) fn note(message: &str) {
    let Some(mut told) = TOLD.get() else {
        return;
    };
    if let Some((count, _)) = message.split_once(COPIES) {
        // Whatever the number looks like, there are some.
        let count = count
            .rsplit(' ')
            .next()
            .and_then(|count| count.parse().ok());
        told.copy_count = told.copy_count.saturating_add(count.unwrap_or(1));
    }
    told.has_whole_graph |= message.contains(WHOLE_GRAPH);
    told.has_divided_graph |= message.contains(PARTITIONED) || message.contains(NO_GRAPH);
    TOLD.set(Some(told));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_told_of_a_session() {
        let copies = |count: &str| {
            format!(
                "{count} Memcpy nodes are added to the graph main_graph for \
                 CUDAExecutionProvider. It might have negative impact on performance (including \
                 unable to run CUDA graph). Set session_options.log_severity_level=1 to see the \
                 detail logs before this message."
            )
        };
        note(&copies("7"));
        let tell =
            |messages: &[&str]| watched(|| messages.iter().for_each(|message| note(message))).1;
        assert_eq!(tell(&[]), Placement::default(), "nothing of before");
        let messages = [&copies("3")[..], "other", &copies("2")];
        assert_eq!(tell(&messages).copy_count, 5);
        assert_eq!(tell(&[&copies("some")]).copy_count, 1);
        let whole = "[TensorRT EP] Whole graph will run on TensorRT execution provider";
        let partitioned = "[TensorRT EP] Graph is partitioned and number of subgraphs running on \
                           TensorRT execution provider is 2";
        let none = "[TensorRT EP] No graph will run on TensorRT execution provider";
        for (messages, expected) in [
            (&[][..], false),
            (&[whole], true),
            (&[whole, whole], true),
            (&[partitioned], false),
            (&[none], false),
            // Of a graph within an operator, and of the one that has the operator.
            (&[whole, partitioned], false),
            (&[none, whole], false),
        ] {
            assert_eq!(
                tell(messages).is_whole_on_tensorrt(),
                expected,
                "{messages:?}"
            );
        }
    }
}
