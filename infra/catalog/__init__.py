"""Facts as data: instance types, prices, the version lock and the combinations that are known to fail.

Every row of the TOML files beside these modules has a source; what no source confirms is marked as unconfirmed. The
modules read the data and answer questions about it; what follows from it is decided in `infra.wiring`.
"""
