# Keeps out of the library's exports what a dependency exports: crc-fast, which object_store has with its default features, among them
# a C interface, and rustc exports that from every cdylib. What one object calls hidden is hidden in the whole link, whichever linker
# does it. scripts/check-symbols tells of names that are missing here, GNU ld of those that are gone.

.macro hide name
    .globl \name
    .hidden \name
.endm

hide crc_fast_checksum
hide crc_fast_checksum_combine
hide crc_fast_checksum_combine_with_params
hide crc_fast_checksum_file
hide crc_fast_checksum_file_with_params
hide crc_fast_checksum_with_params
hide crc_fast_clear_error
hide crc_fast_crc32_iscsi
hide crc_fast_crc32_iso_hdlc
hide crc_fast_crc64_nvme
hide crc_fast_digest_combine
hide crc_fast_digest_finalize
hide crc_fast_digest_finalize_reset
hide crc_fast_digest_free
hide crc_fast_digest_get_amount
hide crc_fast_digest_get_state
hide crc_fast_digest_new
hide crc_fast_digest_new_with_init_state
hide crc_fast_digest_new_with_params
hide crc_fast_digest_reset
hide crc_fast_digest_update
hide crc_fast_error_message
hide crc_fast_get_calculator_target
hide crc_fast_get_custom_params
hide crc_fast_get_last_error
hide crc_fast_get_version

.section .note.GNU-stack,"",%progbits
