"""One file a change of the schema. A file that was released is never changed again."""
