//! Generated prost messages of our own `.proto` files. Names and numbers are those on Triton's wire.
pub mod inference {
    #[derive(Clone, PartialEq, ::prost::Message)]
    pub struct ModelConfig {}
}
