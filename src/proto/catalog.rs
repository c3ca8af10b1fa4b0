//! A catalogue of our `.proto` files by name, for server reflection. Tables made at build time.

/// One `.proto` file.
#[derive(Debug)]
pub struct File {
    pub name: &'static str,
    /// The serialised `FileDescriptorProto`.
    pub descriptor: &'static [u8],
    /// Indices into [`FILES`].
    imports: &'static [usize],
}

include!(concat!(env!("OUT_DIR"), "/catalog.rs"));

/// The file called `name`.
pub fn file_by_name(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

/// The file that defines `symbol`: the full name of a message, enumeration, service, method, field
/// or value.
pub fn file_of_symbol(symbol: &str) -> Option<&'static File> {
    let place = SYMBOLS
        .binary_search_by(|(name, _)| (*name).cmp(symbol))
        .ok()?;
    let (_, file) = SYMBOLS.get(place)?;
    FILES.get(*file)
}

/// Whether `name` is the full name of a message.
pub fn is_message(name: &str) -> bool {
    MESSAGES.binary_search(&name).is_ok()
}

impl File {
    /// The file and all that it needs, itself first, each once.
    pub fn closure(&'static self) -> Vec<&'static File> {
        let mut files = vec![self];
        let mut index = 0;
        while let Some(file) = files.get(index).copied() {
            for import in file.imports.iter().filter_map(|import| FILES.get(*import)) {
                if !files.iter().any(|known| known.name == import.name) {
                    files.push(import);
                }
            }
            index += 1;
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_files() {
        let service = "inference.GRPCInferenceService";
        for (symbol, expected) in [
            (service, Some("grpc_service.proto")),
            (
                "inference.GRPCInferenceService.ModelInfer",
                Some("grpc_service.proto"),
            ),
            (
                "inference.ModelInferRequest.InferInputTensor.name",
                Some("grpc_service.proto"),
            ),
            ("inference.TYPE_FP32", Some("model_config.proto")),
            ("grpc.health.v1.Health", Some("health.proto")),
            (
                "grpc.reflection.v1.ServerReflection",
                Some("reflection.proto"),
            ),
            (
                "grpc.reflection.v1alpha.ServerReflection",
                Some("reflection_v1alpha.proto"),
            ),
            ("inference.Absent", None),
            ("", None),
        ] {
            assert_eq!(
                file_of_symbol(symbol).map(|file| file.name),
                expected,
                "{symbol}"
            );
        }
        let names: Vec<_> = file_of_symbol(service)
            .map(File::closure)
            .unwrap_or_default()
            .iter()
            .map(|file| file.name)
            .collect();
        assert_eq!(names, ["grpc_service.proto", "model_config.proto"]);
        assert!(file_by_name("health.proto").is_some() && file_by_name("absent.proto").is_none());
        assert!(is_message("inference.ModelInferRequest") && !is_message(service));
        assert!(SERVICES.contains(&service) && SERVICES.len() == 4);
    }
}
