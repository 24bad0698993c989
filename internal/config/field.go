package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// EnvPrefix starts the name of every variable that sets a key.
const EnvPrefix = "CDC_RELAY_"

// field is one key of the configuration and the place that holds its value. Sections are structs,
// keys are everything else, so that a key has one name, one variable and one way to be read.
type field struct {
	key   string // such as kafka.tls.ca_file
	value reflect.Value
}

// fields lists every key of c in the order of the struct; setting a field's value sets it in c.
func fields(c *Config) []field {
	return appendFields(nil, "", reflect.ValueOf(c).Elem())
}

func appendFields(out []field, prefix string, section reflect.Value) []field {
	for i := range section.NumField() {
		tag, ok := section.Type().Field(i).Tag.Lookup("yaml")
		if !ok {
			continue
		}
		key := prefix + tag
		if v := section.Field(i); v.Kind() == reflect.Struct {
			out = appendFields(out, key+".", v)
		} else {
			out = append(out, field{key, v})
		}
	}
	return out
}

// env is the variable that sets the field.
func (f field) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.key, ".", "_"))
}

// text is the field's value for people, secrets redacted.
func (f field) text() string { return fmt.Sprint(f.value.Interface()) }

// setText sets the field from a variable or a flag: text as it stands where the type takes text,
// else read as YAML.
func (f field) setText(text string) error {
	if f.value.Kind() == reflect.String {
		f.value.SetString(text)
		return nil
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](f.value.Addr()); ok {
		return u.UnmarshalText([]byte(text))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Content) != 1 {
		return fmt.Errorf("want %s", f.want())
	}
	return f.setNode(doc.Content[0])
}

// setNode sets the field from a value of the YAML file. A value set here replaces what was there
// before: lists and mappings are not merged.
func (f field) setNode(node *yaml.Node) error {
	fresh := reflect.New(f.value.Type())
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](fresh); ok && node.Kind == yaml.ScalarNode {
		if err := u.UnmarshalText([]byte(node.Value)); err != nil {
			return err
		}
	} else if err := node.Decode(fresh.Interface()); err != nil {
		if _, ok := errors.AsType[*yaml.TypeError](err); !ok {
			return err // of an UnmarshalText of ours
		}
		return fmt.Errorf("want %s", f.want())
	}
	f.value.Set(fresh.Elem())
	return nil
}

// want names what a value must look like. It stands in for the decoder's own error, which speaks
// of Go types and quotes the value.
func (f field) want() string {
	switch f.value.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number such as 0.2"
	case reflect.Int64:
		if _, ok := reflect.TypeAssert[Bytes](f.value); ok {
			return "a size such as 16MiB"
		}
		return "a duration such as 10s or 1m30s"
	case reflect.Map:
		return "a mapping such as {name: value}"
	case reflect.Slice:
		return "a name or a list of names"
	}
	return "text"
}
